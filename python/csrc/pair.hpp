// What two ranks say to each other on the communicator that they have for transfers.
#pragma once

#include "communicator.hpp"

#include <cstdint>

namespace rdmaccl {

// In a pair's communicator.
constexpr int kSender = 0;
constexpr int kReceiver = 1;

// A message of so many bytes at the most is over for its sender when it is handed over, and wakes no thread at first.
constexpr size_t kShort = 32 << 10;
// Messages that may be under way so: each takes a piece for its header and one for its bytes, of which the transports hold 32 and more.
constexpr size_t kMostUnanswered = 8;

// How long somebody who waits looks himself for a message, before he leaves that to the thread and sleeps: about as long as it takes to wake
// the two of them.
constexpr std::chrono::microseconds kSpin{100};

// Before a message's bytes.
struct Header {
  int64_t tag;
  uint64_t bytes;
  // 1: no more messages.
  uint64_t is_last;
};

// What the receiver has room for; another number of bytes than it was sent is an error on both sides.
struct Answer {
  uint64_t room;
};

// What is in a rank's inbox in the store: who wants to send, and where to meet.
struct Invitation {
  int32_t from;
  cclUniqueId id;
};

// The key that counts invitations to a rank; they are at /1, /2, and so on.
inline std::string inbox(int rank) {
  return "to/" + std::to_string(rank);
}

// What an error of a transfer begins with: what is done with which rank, and the ranks' numbers in the pair's communicator.
std::string doing_of(const char* what, int peer, int in_pair);

// Sends or receives the bytes of an object or a buffer.
inline void put(Communicator& pair, const void* data, size_t bytes, int to, milliseconds timeout, const char* doing) {
  pair.run([&](cclStream_t stream) { return cclSend(data, bytes, cclUint8, to, pair.get(), stream); }, timeout, doing);
}

inline void take(Communicator& pair, void* data, size_t bytes, int from, milliseconds timeout, const char* doing) {
  pair.run([&](cclStream_t stream) { return cclRecv(data, bytes, cclUint8, from, pair.get(), stream); }, timeout, doing);
}

// Whether something has come from the other end, or something is wrong, which whoever takes it finds out.
inline bool has_come(const Communicator& pair, int from) {
  int arrived = 0;
  return cclProbe(pair.get(), from, &arrived) != cclSuccess || arrived != 0;
}

inline std::exception_ptr mismatch(int from, int to, uint64_t sent, uint64_t room) {
  return failure(
      "rdmaccl: rank " + std::to_string(from) + " sends " + std::to_string(sent) + " bytes to rank " + std::to_string(to) +
      ", which has a tensor of " + std::to_string(room) + " bytes for them");
}

}  // namespace rdmaccl
