#include "transfers.hpp"

#include "errors.hpp"
#include "store.hpp"

#include <cstring>
#include <limits>

namespace rdmaccl {

namespace {

// In a pair's communicator.
constexpr int kSender = 0;
constexpr int kReceiver = 1;

// A receiver that listens waits for as long as it takes; that the other one dies it learns all the same.
constexpr milliseconds kForever{std::numeric_limits<int>::max()};

struct Header {
  int64_t tag;
  uint64_t bytes;
  // 1: no more messages.
  uint64_t is_last;
};

// What the receiver has for a message; another number of bytes is an error on both sides.
struct Answer {
  uint64_t room;
};

std::string inbox(int rank) {
  return "to/" + std::to_string(rank);
}

// What is in an inbox: who wants to send, and where to meet.
struct Invitation {
  int32_t from;
  cclUniqueId id;
};

std::optional<Invitation> look(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) {
    return std::nullopt;
  }
  const auto bytes = store.get(key);
  Invitation invitation{};
  TORCH_CHECK(bytes.size() == sizeof invitation, "rdmaccl: the store has ", bytes.size(), " bytes in place of an invitation");
  std::memcpy(&invitation, bytes.data(), sizeof invitation);
  return invitation;
}

std::exception_ptr failed(const std::string& words) {
  try {
    raise(words);
  } catch (...) {
    return std::current_exception();
  }
}

// Sends or receives the bytes of an object or a buffer.
void put(Communicator& pair, const void* data, size_t bytes, int to, milliseconds timeout, const char* doing) {
  pair.run([&](cclStream_t stream) { return cclSend(data, bytes, cclUint8, to, pair.get(), stream); }, timeout, doing);
}

void take(Communicator& pair, void* data, size_t bytes, int from, milliseconds timeout, const char* doing) {
  pair.run([&](cclStream_t stream) { return cclRecv(data, bytes, cclUint8, from, pair.get(), stream); }, timeout, doing);
}

std::string mismatch(int from, int to, uint64_t sent, uint64_t room) {
  return "rdmaccl: rank " + std::to_string(from) + " sends " + std::to_string(sent) + " bytes to rank " + std::to_string(to) +
      ", which has a tensor of " + std::to_string(room) + " bytes for them";
}

}  // namespace

int TransferWork::sourceRank() const {
  return source_;
}

bool TransferWork::wait(milliseconds timeout) {
  const auto limit = timeout > kNoTimeout ? timeout : getTimeout();
  if (!ends_within(limit)) {
    const auto error = failed(too_late(limit));
    const auto transfers = transfers_.lock();
    if (!transfers || !transfers->give_up(*this, error)) {
      std::rethrow_exception(error);
    }
  }
  return RdmacclWork::wait(kNoTimeout);
}

Transfers::Transfers(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    Settings settings,
    std::function<std::exception_ptr()> fault)
    : store_(std::move(store)), rank_(rank), size_(size), settings_(std::move(settings)), fault_(std::move(fault)) {}

Transfers::~Transfers() {
  stop();
}

Settings Transfers::pair_settings(int from, int to) const {
  auto settings = settings_;
  settings.name += " transfers " + std::to_string(from) + " to " + std::to_string(to);
  settings.algorithm.clear();
  return settings;
}

void Transfers::send(c10::intrusive_ptr<TransferWork> work, Flat flat, size_t bytes, int to, int tag) {
  TORCH_CHECK_VALUE(to >= 0 && to < size_ && to != rank_, "rdmaccl: rank ", rank_, " cannot send to rank ", to);
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!is_closing_, "rdmaccl: a send on a process group that was shut down");
  End& end = senders_.try_emplace(to, pair_settings(rank_, to)).first->second;
  if (end.failure) {
    std::rethrow_exception(end.failure);
  }
  end.queue.push_back({std::move(work), std::move(flat), bytes, tag});
  if (!end.thread.joinable()) {
    end.is_connecting = true;
    end.thread = std::thread([this, &end, to] { run_sender(end, to); });
    open_door();
  }
  changed_.notify_all();
}

void Transfers::recv(c10::intrusive_ptr<TransferWork> work, Flat flat, size_t bytes, int from, int tag) {
  TORCH_CHECK_VALUE(from < size_ && from != rank_, "rdmaccl: rank ", rank_, " cannot receive from rank ", from);
  std::unique_lock lock(mutex_);
  TORCH_CHECK(!is_closing_, "rdmaccl: a receive on a process group that was shut down");
  work->transfers_ = weak_from_this();
  Recv recv{std::move(work), std::move(flat), bytes, from, tag};
  for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
    if (recv.takes(kept->from, kept->tag)) {
      const Kept message = std::move(*kept);
      kept_.erase(kept);
      lock.unlock();
      fill(recv, message);
      return;
    }
  }
  const auto end = receivers_.find(from);
  if (end != receivers_.end() && end->second.failure) {
    std::rethrow_exception(end->second.failure);
  }
  receives_.push_back(std::move(recv));
  open_door();
  changed_.notify_all();
}

void Transfers::open_door() {
  if (!door_.joinable()) {
    door_ = std::thread([this] { run_door(); });
  }
}

void Transfers::finish(Recv& recv, int from, std::exception_ptr error) {
  recv.work->source_ = from;
  try {
    if (!error) {
      recv.flat.restore();
    }
  } catch (...) {
    error = std::current_exception();
  }
  recv.work->done(error);
}

void Transfers::fill(Recv& recv, const Kept& message) {
  const bool fits = message.bytes.size() == recv.bytes;
  if (fits) {
    std::memcpy(recv.flat.data(), message.bytes.data(), recv.bytes);
  }
  finish(recv, message.from, fits ? nullptr : failed(mismatch(message.from, rank_, message.bytes.size(), recv.bytes)));
}

std::optional<Transfers::Recv> Transfers::claim(int from, int tag) {
  for (auto recv = receives_.begin(); recv != receives_.end(); ++recv) {
    if (recv->takes(from, tag)) {
      std::optional<Recv> claimed(std::move(*recv));
      receives_.erase(recv);
      return claimed;
    }
  }
  return std::nullopt;
}

bool Transfers::give_up(const TransferWork& work, const std::exception_ptr& error) {
  std::unique_lock lock(mutex_);
  for (auto recv = receives_.begin(); recv != receives_.end(); ++recv) {
    if (recv->work.get() == &work) {
      Recv given_up = std::move(*recv);
      receives_.erase(recv);
      lock.unlock();
      finish(given_up, -1, error);
      return true;
    }
  }
  return false;
}

// ---- sending

void Transfers::connect_to(End& end, int to) {
  Invitation invitation{rank_, {}};
  check(cclGetUniqueId(&invitation.id), "rdmaccl: making an id for transfers");
  const auto number = store_->add(inbox(to), 1);
  const auto* bytes = reinterpret_cast<const uint8_t*>(&invitation);
  store_->set(inbox(to) + "/" + std::to_string(number), std::vector<uint8_t>(bytes, bytes + sizeof invitation));
  end.communicator->join(invitation.id, kSender, 2);
}

void Transfers::deliver(End& end, const Send& message, int to) {
  const auto limit = message.work->getTimeout();
  const Header header{message.tag, message.bytes, 0};
  auto& pair = *end.communicator;
  put(pair, &header, sizeof header, kReceiver, limit, "rdmaccl:send");
  if (message.bytes > 0) {
    put(pair, message.flat.data(), message.bytes, kReceiver, limit, "rdmaccl:send");
  }
  Answer answer{};
  take(pair, &answer, sizeof answer, kReceiver, limit, "rdmaccl:send");
  if (answer.room != message.bytes) {
    raise(mismatch(rank_, to, message.bytes, answer.room));
  }
}

std::exception_ptr Transfers::send_one(End& end, const Send& message, int to) {
  try {
    if (end.is_connecting) {
      connect_to(end, to);
      const std::lock_guard lock(mutex_);
      end.is_connecting = false;
    }
    deliver(end, message, to);
    return nullptr;
  } catch (...) {
    const auto error = std::current_exception();
    const std::lock_guard lock(mutex_);
    if (end.failure) {
      // Why it was aborted says more.
      return end.failure;
    }
    if (end.is_connecting || end.communicator->fault()) {
      end.failure = error;
    }
    return error;
  }
}

void Transfers::run_sender(End& end, int to) {
  std::unique_lock lock(mutex_);
  while (!end.failure) {
    changed_.wait(lock, [&] { return is_closing_ || !end.queue.empty(); });
    if (is_closing_) {
      break;
    }
    const Send message = std::move(end.queue.front());
    end.queue.pop_front();
    end.is_busy = true;
    lock.unlock();
    message.work->done(send_one(end, message, to));
    lock.lock();
    end.is_busy = false;
  }
  const bool says_goodbye = !end.is_connecting && !end.failure;
  end.is_connecting = false;
  if (!end.failure) {
    end.failure = failed("rdmaccl: the process group was shut down before this send began");
  }
  const auto rest = std::move(end.queue);
  end.queue.clear();
  lock.unlock();
  for (const auto& message : rest) {
    message.work->done(end.failure);
  }
  if (says_goodbye) {
    const Header last{0, 0, 1};
    try {
      put(*end.communicator, &last, sizeof last, kReceiver, milliseconds(1000), "rdmaccl:leaving");
    } catch (...) {
      // The receiver learns by other ways that nothing comes any more.
    }
  }
  end.communicator->close();
}

// ---- receiving

bool Transfers::is_wanted(int from) const {
  return std::any_of(
      receives_.begin(), receives_.end(), [&](const Recv& recv) { return recv.from < 0 || recv.from == from; });
}

bool Transfers::needs_door() const {
  const bool all_are_in = static_cast<int>(receivers_.size()) == size_ - 1;
  return std::any_of(receives_.begin(), receives_.end(), [&](const Recv& recv) {
    return recv.from < 0 ? !all_are_in : receivers_.count(recv.from) == 0;
  });
}

bool Transfers::is_connecting() const {
  return std::any_of(senders_.begin(), senders_.end(), [](const auto& sender) { return sender.second.is_connecting; });
}

void Transfers::run_door() {
  std::unique_lock lock(mutex_);
  int next = 1;
  while (!is_closing_) {
    changed_.wait(lock, [&] { return is_closing_ || needs_door() || is_connecting(); });
    for (Pauses pauses; !is_closing_ && (needs_door() || is_connecting());) {
      const bool may_come = needs_door();
      lock.unlock();
      std::optional<Invitation> invitation;
      auto fault = fault_();
      try {
        if (may_come && !fault) {
          invitation = look(*store_, inbox(rank_) + "/" + std::to_string(next));
        }
      } catch (...) {
        // Without the store, nobody new can come in.
        fault = std::current_exception();
      }
      if (fault) {
        fail_strangers(fault);
      }
      lock.lock();
      if (invitation && !is_closing_) {
        const auto from = invitation->from;
        End& end = receivers_.try_emplace(from, pair_settings(from, rank_)).first->second;
        end.thread = std::thread([this, &end, from, id = invitation->id] { run_receiver(end, from, id); });
        ++next;
        break;
      }
      changed_.wait_for(lock, pauses.next(), [&] { return is_closing_; });
    }
  }
}

void Transfers::fail_strangers(const std::exception_ptr& fault) {
  std::list<Recv> failing;
  std::unique_lock lock(mutex_);
  for (auto recv = receives_.begin(); recv != receives_.end();) {
    const auto next = std::next(recv);
    if (recv->from < 0 || receivers_.count(recv->from) == 0) {
      failing.splice(failing.end(), receives_, recv);
    }
    recv = next;
  }
  for (auto& [rank, end] : senders_) {
    if (end.is_connecting && !end.failure) {
      end.failure = fault;
      end.communicator->abort();
    }
  }
  lock.unlock();
  for (auto& recv : failing) {
    finish(recv, -1, fault);
  }
}

void Transfers::run_receiver(End& end, int from, const cclUniqueId& id) {
  std::exception_ptr failure;
  bool is_orderly = false;
  try {
    end.communicator->join(id, kReceiver, 2);
    while (wait_until_wanted(end, from)) {
      if (!accept(end, from)) {
        is_orderly = true;
        raise("rdmaccl: rank " + std::to_string(from) + " has shut its process group down, and sends nothing more");
      }
    }
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure) {
    fail_receives(end, from, failure, is_orderly);
  }
  end.communicator->close();
}

bool Transfers::wait_until_wanted(End& end, int from) {
  std::unique_lock lock(mutex_);
  end.is_busy = false;
  changed_.wait(lock, [&] { return is_closing_ || is_wanted(from); });
  end.is_busy = !is_closing_;
  return end.is_busy;
}

bool Transfers::accept(End& end, int from) {
  auto& pair = *end.communicator;
  Header header{};
  take(pair, &header, sizeof header, kSender, kForever, "rdmaccl:recv");
  if (header.is_last != 0) {
    return false;
  }
  Kept kept{from, static_cast<int>(header.tag), {}};
  std::unique_lock lock(mutex_);
  auto match = claim(from, kept.tag);
  lock.unlock();
  try {
    const bool fits = match && match->bytes == header.bytes;
    if (!fits) {
      kept.bytes.resize(header.bytes);
    }
    if (header.bytes > 0) {
      take(pair, fits ? match->flat.data() : kept.bytes.data(), header.bytes, kSender, settings_.timeout, "rdmaccl:recv");
    }
    const Answer answer{match ? match->bytes : header.bytes};
    put(pair, &answer, sizeof answer, kSender, settings_.timeout, "rdmaccl:recv");
    if (match) {
      finish(*match, from, fits ? nullptr : failed(mismatch(from, rank_, header.bytes, match->bytes)));
      return true;
    }
  } catch (...) {
    if (match) {
      finish(*match, from, std::current_exception());
    }
    throw;
  }
  lock.lock();
  // Its receive may have been issued meanwhile.
  match = claim(from, kept.tag);
  if (!match) {
    kept_.push_back(std::move(kept));
    return true;
  }
  lock.unlock();
  fill(*match, kept);
  return true;
}

void Transfers::fail_receives(End& end, int from, const std::exception_ptr& error, bool is_orderly) {
  std::list<Recv> failing;
  std::unique_lock lock(mutex_);
  end.failure = error;
  end.is_busy = false;
  for (auto recv = receives_.begin(); recv != receives_.end();) {
    const auto next = std::next(recv);
    // A receive from anybody can still get something from the others if this one has left in order.
    if (recv->from == from || (recv->from < 0 && !is_orderly)) {
      failing.splice(failing.end(), receives_, recv);
    }
    recv = next;
  }
  lock.unlock();
  for (auto& recv : failing) {
    finish(recv, from, error);
  }
}

// ---- the end

void Transfers::abort() {
  const std::lock_guard lock(mutex_);
  for (auto* ends : {&senders_, &receivers_}) {
    for (auto& [rank, end] : *ends) {
      end.communicator->abort();
    }
  }
}

void Transfers::stop() {
  std::unique_lock lock(mutex_);
  is_closing_ = true;
  for (auto* ends : {&senders_, &receivers_}) {
    for (auto& [rank, end] : *ends) {
      // Whoever sleeps leaves in order; whoever waits for a peer would wait on.
      if (end.is_busy) {
        end.communicator->abort();
      }
    }
  }
  changed_.notify_all();
  auto open = std::move(receives_);
  receives_.clear();
  lock.unlock();
  for (auto& recv : open) {
    finish(recv, -1, failed("rdmaccl: the process group was shut down before this receive was over"));
  }
  // The doorkeeper first: it makes receivers.
  if (door_.joinable()) {
    door_.join();
  }
  for (auto* ends : {&senders_, &receivers_}) {
    for (auto& [rank, end] : *ends) {
      if (end.thread.joinable()) {
        end.thread.join();
      }
    }
  }
}

}  // namespace rdmaccl
