// Sends and receives with tags, in any order, from anybody.
//
// The library matches transfers of a pair by their order; PyTorch matches by tags, lets sends and receives of a pair be issued in any
// order, and has receives from any rank. So each ordered pair of ranks that talk has a communicator of two, made when it is
// first needed, with a thread at each end. A message is a header, its bytes, and the receiver's answer. The send of a long message ends with
// it; a short one is over when it is handed over, as long as not too many answers are owed. The receiver
// reads messages while a receive is open that they may be for; what comes with another tag is kept.
//
// Who waits for a transfer carries it himself where nobody else has begun to, and who waits for a batch carries all of it side by side; the
// threads carry what nobody waits for. To wake one takes ten times as long as a short message, so at first none is woken: a watch does it a moment
// later, should nobody have come to wait, and who waits for one transfer does it for all others that are long.
#pragma once

#include "cargo.hpp"
#include "communicator.hpp"

#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <thread>

namespace rdmaccl {

class Transfers;

class TransferWork final : public RdmacclWork {
 public:
  using RdmacclWork::RdmacclWork;

  // Of a receive from anybody: who it was.
  int sourceRank() const override;
  // Without a timeout, waits as long as the group's.
  bool wait(milliseconds timeout) override;

  // Before each of them is waited for so long: carries the transfers among them side by side.
  static void carry(const std::vector<c10::intrusive_ptr<c10d::Work>>& works, milliseconds timeout);

 private:
  // Who waits so long may carry it himself: he may have to wait as long as the transfer may take.
  bool may_be_carried(milliseconds timeout) const {
    return (timeout <= kNoTimeout || timeout >= getTimeout()) && !has_ended();
  }

  friend class Transfers;
  std::atomic<int> source_ = -1;
  // Where it is made; the other rank, negative for anybody; and whether it sends. Set when it is issued.
  std::weak_ptr<Transfers> transfers_;
  int peer_ = -1;
  bool is_send_ = false;
};

class Transfers : public std::enable_shared_from_this<Transfers> {
 public:
  // `fault` says what is wrong with the group, if something is: who has not come yet may be dead.
  Transfers(
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      int size,
      Settings settings,
      std::function<std::exception_ptr()> fault);

  void send(c10::intrusive_ptr<TransferWork> work, Cargo cargo, size_t bytes, int to, int tag);
  // From anybody: `from` is negative.
  void recv(c10::intrusive_ptr<TransferWork> work, Cargo cargo, size_t bytes, int from, int tag);

  // Ends everything with an error, here and at the peers.
  void abort();
  // Leaves: peers that wait for no message of this rank do not notice.
  void close();

 private:
  friend class TransferWork;

  struct Send {
    c10::intrusive_ptr<TransferWork> work;
    Cargo cargo;
    size_t bytes;
    int tag;
  };
  struct Recv {
    c10::intrusive_ptr<TransferWork> work;
    Cargo cargo;
    size_t bytes;
    int from;
    int tag;

    bool takes(int sender, int its_tag) const {
      return (from < 0 || from == sender) && tag == its_tag;
    }
  };
  // Came before its receive.
  struct Kept {
    int from;
    int tag;
    std::vector<char> bytes;
  };
  // A message whose header has come, and the receive that it is for, if there is one already.
  struct Arrival {
    size_t bytes;
    std::optional<Recv> match;
    Kept kept;

    bool fits() const {
      return match && match->bytes == bytes;
    }
    // Where its bytes go.
    void* room() {
      return fits() ? match->cargo.data() : kept.bytes.data();
    }
  };
  // What is carried side by side.
  struct Incoming;
  struct Batch;
  // One end of a pair's communicator.
  struct End {
    End(Settings settings, std::string doing)
        : communicator(std::make_unique<Communicator>(std::move(settings))), doing(std::move(doing)) {}

    std::unique_ptr<Communicator> communicator;
    // What its errors begin with: who the ranks are that the library has numbers of its own for.
    const std::string doing;
    std::thread thread;
    // What the thread waits for.
    std::condition_variable changed;
    // Why nothing goes here any more.
    std::exception_ptr failure;
    std::deque<Send> queue;
    // Somebody carries messages, and may wait for the peer at any moment: at first the thread, which meets the peer. Nobody else touches the
    // communicator, `unanswered` and `copy`.
    bool is_busy = true;
    // The thread is wanted.
    bool is_called = true;
    // A message has gone all its way, so others than the thread may carry the next.
    bool is_open = false;
    // Of a sender: it has not met its receiver yet.
    bool is_connecting = false;
    // Of a sender: the bytes of messages whose answers are still to come.
    std::deque<size_t> unanswered;
    // Of a sender: the short message that is handed over.
    std::vector<char> copy;

    // Whether whoever comes may carry a message. Under the lock.
    bool is_free() const {
      return is_open && !is_busy && !failure;
    }
  };

  // Starts a thread, which keeps this object. The last of a process group may go in what a thread's own work calls back.
  template <class Work>
  std::thread thread(Work work) {
    return std::thread([self = shared_from_this(), work = std::move(work)] { work(*self); });
  }
  using Lock = std::unique_lock<std::mutex>;

  // The threads' work.
  void run_sender(End& end, int to);
  void run_receiver(End& end, int from, const cclUniqueId& id);
  void run_door();
  void open_door();
  void run_watch();

  // What somebody does who waits for a transfer: carries it, if nobody else has begun to.
  void attend(const TransferWork& work);
  void attend_send(const TransferWork& work, End& end, Lock& lock);
  void attend_receive(const TransferWork& work, End& end, Lock& lock);
  // The same for several that are waited for together.
  void attend(const std::vector<TransferWork*>& works);
  // Those of them that nobody has begun, one for each end, whose ends are the caller's then. Under the lock.
  Batch gather(const std::vector<TransferWork*>& works);
  // Carries them as far as their peers have come; leaves the rest to threads.
  void carry(Batch& batch);
  static void send_headers(Batch& batch);
  void await_headers(Batch& batch);
  // Moves the bytes of long messages.
  void move(Batch& batch);
  // Ends those whose bytes did not all come.
  void fail(Batch& batch, const std::string& words);
  void give_up(Incoming& in, const std::exception_ptr& error);
  void conclude(Batch& batch);
  // Carries the short messages that nobody has begun to carry, as far as nothing is to be waited for.
  void carry_short(Lock& lock);
  // Under the lock, as the next five: a transfer has been issued, for the end's thread or for whoever comes to wait.
  void announce(End& end);
  // Wakes an end's thread.
  static void call(End& end);
  // Leaves an end to whoever comes to wait, and to the watch.
  void leave_to_watch();
  // Calls the threads of ends with something to do that nobody has begun, from so many bytes on; not that of `own`.
  bool call_for(size_t least, const End* own = nullptr);
  // After somebody has carried something: to the thread, if there is more for it.
  void release(End& end, bool has_more);

  Settings pair_settings(int from, int to) const;
  void connect_to(End& end, int to);
  // Takes answers until so many are owed.
  void settle(End& end, int to, size_t most, milliseconds limit);
  static void send_header(End& end, const Send& message);
  void deliver(End& end, const Send& message, int to);
  // Connects if need be, and delivers; why it has failed.
  std::exception_ptr send_one(End& end, const Send& message, int to);
  // Why a message has failed on this end, where this error was met: what had happened before says more.
  std::exception_ptr blame(End& end, const std::exception_ptr& error);
  // Carries the first message of the queue. Under the lock, which it gives back meanwhile.
  void carry_next(End& end, int to, Lock& lock);
  // Reads one message; false if there are no more. The bytes of a long one are left to the caller who asks for it.
  bool accept(End& end, int from, std::optional<Arrival>* later);
  // Its header only; none if there are no more.
  std::optional<Arrival> meet(End& end, int from);
  // Tells the sender that its bytes have come, and ends the receive, or keeps them for one.
  void answer(End& end, Arrival& arrival, int from);
  // The same by whoever has the end; false if it was the last, for whatever reason, and then the receives have failed.
  bool read_one(End& end, int from, std::optional<Arrival>* later = nullptr);
  // Takes the first receive that such a message is for. Under the lock, as the next three.
  std::optional<Recv> claim(int from, int tag);
  // Whether there is a receive of so many bytes or more.
  bool is_wanted(int from, size_t least = 0) const;
  bool needs_door() const;
  bool is_connecting() const;
  // Ends a receive.
  void finish(Recv& recv, int from, std::exception_ptr error);
  void fill(Recv& recv, const Kept& message);
  void fail_receives(End& end, int from, const std::exception_ptr& error, bool is_orderly);
  // Ends what waits for ranks that have not come yet.
  void fail_strangers(const std::exception_ptr& fault);
  // Ends a receive that no message has come for; false: one has.
  bool give_up(const TransferWork& work, const std::exception_ptr& error);

  c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  const Settings settings_;
  const std::function<std::exception_ptr()> fault_;

  mutable std::mutex mutex_;
  bool is_closing_ = false;
  std::list<Recv> receives_;
  std::list<Kept> kept_;
  // By the other rank. A `map`, so that ends stay where they are.
  std::map<int, End> senders_;
  std::map<int, End> receivers_;
  // Lets in those who want to send to this rank, and watches over the group while somebody is waited for.
  std::thread door_;
  std::condition_variable knock_;
  // Looks whether anything is left that nobody carries, often while there were short transfers a moment ago.
  std::thread watch_;
  std::condition_variable watched_;
  int looks_left_ = 0;
};

}  // namespace rdmaccl
