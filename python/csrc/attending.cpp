// Who carries a transfer: whoever waits for it, or else, a moment later, a thread.
#include "pair.hpp"
#include "transfers.hpp"

#include <thread>

namespace rdmaccl {

namespace {

using Clock = std::chrono::steady_clock;

// From one look of the watch to the next, and for how many it goes on when there is nothing to see.
constexpr std::chrono::microseconds kTick{200};
constexpr int kLooks = 50;

}  // namespace

void Transfers::attend(const TransferWork& work) {
  Lock lock(mutex_);
  // Those that this thread has issued before: the peer may answer one of them with what is waited for.
  carry_short(lock);
  auto& ends = work.is_send_ ? senders_ : receivers_;
  const auto end = ends.find(work.peer_);
  if (end == ends.end()) {
    return;
  }
  End& own = end->second;
  // The peer may wait for any of the others.
  call_for(kShort + 1, &own);
  if (work.is_send_) {
    attend_send(work, own, lock);
  } else {
    attend_receive(work, own, lock);
  }
}

void Transfers::attend_send(const TransferWork& work, End& end, Lock& lock) {
  while (!work.has_ended() && end.is_free() && !is_closing_ && !end.queue.empty()) {
    carry_next(end, work.peer_, lock);
  }
}

void Transfers::attend_receive(const TransferWork& work, End& end, Lock& lock) {
  if (work.has_ended() || !end.is_free() || is_closing_) {
    return;
  }
  end.is_busy = true;
  lock.unlock();
  const auto limit = Clock::now() + kSpin;
  bool goes_on = true;
  while (goes_on && !work.has_ended()) {
    if (has_come(*end.communicator, kSender)) {
      goes_on = read_one(end, work.peer_);
    } else if (Clock::now() >= limit) {
      goes_on = false;
    } else {
      std::this_thread::yield();
    }
  }
  lock.lock();
  // If the message has not come, the thread waits for it.
  end.is_called |= !work.has_ended();
  release(end, is_wanted(work.peer_));
}

void Transfers::carry_short(Lock& lock) {
  for (auto& [to, end] : senders_) {
    while (end.is_free() && !is_closing_ && !end.queue.empty() && end.queue.front().bytes <= kShort &&
           (end.unanswered.size() < kMostUnanswered || has_come(*end.communicator, kReceiver))) {
      carry_next(end, to, lock);
    }
  }
}

void Transfers::announce(End& end) {
  if (end.is_open) {
    leave_to_watch();
  } else {
    call(end);
  }
}

void Transfers::call(End& end) {
  end.is_called = true;
  end.changed.notify_one();
}

void Transfers::release(End& end, bool has_more) {
  end.is_busy = false;
  end.is_called = end.is_called && has_more;
  if (end.is_called || end.failure || is_closing_) {
    end.changed.notify_one();
  } else if (has_more) {
    leave_to_watch();
  }
}

void Transfers::leave_to_watch() {
  const bool sleeps = looks_left_ == 0;
  looks_left_ = kLooks;
  if (!watch_.joinable()) {
    watch_ = thread([](Transfers& self) { self.run_watch(); });
  } else if (sleeps) {
    watched_.notify_one();
  }
}

void Transfers::run_watch() {
  Lock lock(mutex_);
  while (!is_closing_) {
    watched_.wait(lock, [&] { return is_closing_ || looks_left_ > 0; });
    // What was issued a moment ago is left to who issued it.
    watched_.wait_for(lock, kTick, [&] { return is_closing_; });
    looks_left_ = call_for(0) ? kLooks : looks_left_ - 1;
  }
}

bool Transfers::call_for(size_t least, const End* own) {
  bool found = false;
  const auto look = [&](End& end, bool has_something) {
    if (has_something && &end != own && !end.is_busy && !end.is_called) {
      call(end);
      found = true;
    }
  };
  for (auto& [to, end] : senders_) {
    look(end, !end.queue.empty() && end.queue.front().bytes >= least);
  }
  for (auto& [from, end] : receivers_) {
    look(end, is_wanted(from, least));
  }
  return found;
}

}  // namespace rdmaccl
