#include "transfers.hpp"

#include "pair.hpp"

#include <cstring>

namespace rdmaccl {

std::string doing_of(const char* what, int peer, int in_pair) {
  return std::string("rdmaccl:") + what + " rank " + std::to_string(peer) + " (of these two it is rank " + std::to_string(in_pair) +
      ", this one rank " + std::to_string(1 - in_pair) + ")";
}

int TransferWork::sourceRank() const {
  return source_;
}

bool TransferWork::wait(milliseconds timeout) {
  const auto limit = timeout > kNoTimeout ? timeout : getTimeout();
  const auto transfers = transfers_.lock();
  if (transfers && may_be_carried(timeout)) {
    transfers->attend(*this);
  }
  if (!ends_within(limit)) {
    const auto error = failure(too_late(limit));
    if (!transfers || !transfers->give_up(*this, error)) {
      std::rethrow_exception(error);
    }
  }
  return RdmacclWork::wait(kNoTimeout);
}

void TransferWork::carry(const std::vector<c10::intrusive_ptr<c10d::Work>>& works, milliseconds timeout) {
  // All of a process group.
  std::shared_ptr<Transfers> transfers;
  std::vector<TransferWork*> carried;
  for (const auto& work : works) {
    auto* const transfer = dynamic_cast<TransferWork*>(work.get());
    if (transfer != nullptr && transfer->may_be_carried(timeout)) {
      transfers = transfer->transfers_.lock();
      carried.push_back(transfer);
    }
  }
  if (transfers) {
    transfers->attend(carried);
  }
}

Transfers::Transfers(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    Settings settings,
    std::function<std::exception_ptr()> fault)
    : store_(std::move(store)), rank_(rank), size_(size), settings_(std::move(settings)), fault_(std::move(fault)) {}

Settings Transfers::pair_settings(int from, int to) const {
  auto settings = settings_;
  settings.name += " transfers " + std::to_string(from) + " to " + std::to_string(to);
  settings.algorithm.clear();
  return settings;
}

void Transfers::send(c10::intrusive_ptr<TransferWork> work, Cargo cargo, size_t bytes, int to, int tag) {
  TORCH_CHECK_VALUE(to >= 0 && to < size_ && to != rank_, "rdmaccl: rank ", rank_, " cannot send to rank ", to);
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!is_closing_, "rdmaccl: a send on a process group that was shut down");
  End& end = senders_.try_emplace(to, pair_settings(rank_, to), doing_of("send to", to, kReceiver)).first->second;
  if (end.failure) {
    std::rethrow_exception(end.failure);
  }
  work->transfers_ = weak_from_this();
  work->peer_ = to;
  work->is_send_ = true;
  end.queue.push_back({std::move(work), std::move(cargo), bytes, tag});
  if (!end.thread.joinable()) {
    end.is_connecting = true;
    end.thread = thread([&end, to](Transfers& self) { self.run_sender(end, to); });
    open_door();
  } else {
    announce(end);
  }
}

void Transfers::recv(c10::intrusive_ptr<TransferWork> work, Cargo cargo, size_t bytes, int from, int tag) {
  TORCH_CHECK_VALUE(from < size_ && from != rank_, "rdmaccl: rank ", rank_, " cannot receive from rank ", from);
  std::unique_lock lock(mutex_);
  TORCH_CHECK(!is_closing_, "rdmaccl: a receive on a process group that was shut down");
  work->transfers_ = weak_from_this();
  work->peer_ = from;
  Recv recv{std::move(work), std::move(cargo), bytes, from, tag};
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
  if (from < 0) {
    for (auto& [rank, other] : receivers_) {
      call(other);
    }
  } else if (end != receivers_.end()) {
    announce(end->second);
  }
  open_door();
}

void Transfers::open_door() {
  if (!door_.joinable()) {
    door_ = thread([](Transfers& self) { self.run_door(); });
  } else if (needs_door() || is_connecting()) {
    knock_.notify_one();
  }
}

void Transfers::finish(Recv& recv, int from, std::exception_ptr error) {
  recv.work->source_ = from;
  try {
    if (!error) {
      recv.cargo.deliver();
    }
  } catch (...) {
    error = std::current_exception();
  }
  recv.work->done(error);
}

void Transfers::fill(Recv& recv, const Kept& message) {
  const bool fits = message.bytes.size() == recv.bytes;
  if (fits) {
    std::memcpy(recv.cargo.data(), message.bytes.data(), recv.bytes);
  }
  finish(recv, message.from, fits ? nullptr : mismatch(message.from, rank_, message.bytes.size(), recv.bytes));
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

void Transfers::abort() {
  const std::lock_guard lock(mutex_);
  for (auto* ends : {&senders_, &receivers_}) {
    for (auto& [rank, end] : *ends) {
      end.communicator->abort();
    }
  }
}

namespace {

// Waits for a thread, unless it is this one: that ends by itself.
void part_with(std::thread& thread) {
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else if (thread.joinable()) {
    thread.join();
  }
}

}  // namespace

void Transfers::close() {
  std::unique_lock lock(mutex_);
  carry_short(lock);
  is_closing_ = true;
  for (auto* ends : {&senders_, &receivers_}) {
    for (auto& [rank, end] : *ends) {
      // Whoever sleeps leaves in order; whoever waits for a peer would wait on.
      if (end.is_busy) {
        end.communicator->abort();
      }
      end.changed.notify_one();
    }
  }
  knock_.notify_one();
  watched_.notify_one();
  auto open = std::move(receives_);
  receives_.clear();
  lock.unlock();
  for (auto& recv : open) {
    finish(recv, -1, failure("rdmaccl: the process group was shut down before this receive was over"));
  }
  part_with(watch_);
  // The doorkeeper before the ends: it makes receivers.
  part_with(door_);
  for (auto* ends : {&senders_, &receivers_}) {
    for (auto& [rank, end] : *ends) {
      part_with(end.thread);
    }
  }
}

}  // namespace rdmaccl
