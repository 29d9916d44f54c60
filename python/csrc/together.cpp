// Transfers that are waited for as one, side by side: whoever waits carries them in one group of the library.
#include "pair.hpp"
#include "transfers.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace rdmaccl {

struct Transfers::Incoming {
  End& end;
  int from;
  // Its header has not been seen yet.
  bool is_awaited;
  // A long message, whose bytes are still to come: also where no receive is there for it. Its sender may have to wait for another such
  // message before he sends them.
  std::optional<Arrival> arrival;
  bool has_failed;
};

struct Transfers::Batch {
  struct Out {
    End& end;
    int to;
    std::optional<Send> message;
    std::exception_ptr error;
  };
  std::vector<Out> sends;
  std::vector<Incoming> receives;

  bool is_empty() const {
    return sends.empty() && receives.empty();
  }
};

void Transfers::attend(const std::vector<TransferWork*>& works) {
  Lock lock(mutex_);
  carry_short(lock);
  // A round for each message of a pair.
  while (!is_closing_) {
    auto batch = gather(works);
    call_for(kShort + 1);
    if (batch.is_empty()) {
      return;
    }
    lock.unlock();
    carry(batch);
    lock.lock();
  }
}

Transfers::Batch Transfers::gather(const std::vector<TransferWork*>& works) {
  Batch batch;
  for (const auto* work : works) {
    auto& ends = work->is_send_ ? senders_ : receivers_;
    const auto found = ends.find(work->peer_);
    if (found == ends.end() || work->has_ended()) {
      continue;
    }
    End& end = found->second;
    if (!end.is_free() || end.is_called) {
      continue;
    }
    if (!work->is_send_) {
      batch.receives.push_back({end, work->peer_, true, std::nullopt, false});
    } else if (!end.queue.empty() && end.queue.front().work.get() == work && end.queue.front().bytes > kShort) {
      batch.sends.push_back({end, work->peer_, std::move(end.queue.front()), nullptr});
      end.queue.pop_front();
    } else {
      continue;
    }
    end.is_busy = true;
  }
  return batch;
}

void Transfers::carry(Batch& batch) {
  send_headers(batch);
  await_headers(batch);
  move(batch);
  conclude(batch);
}

void Transfers::send_headers(Batch& batch) {
  for (auto& out : batch.sends) {
    try {
      send_header(out.end, *out.message);
    } catch (...) {
      out.error = std::current_exception();
    }
  }
}

// A message whose header has come is under way, so waiting for its bytes is waiting for nobody else. Whose header has not come may never come: its
// receive is left to the thread, and must not keep what is sent from going.
void Transfers::await_headers(Batch& batch) {
  const auto limit = std::chrono::steady_clock::now() + kSpin;
  for (auto left = batch.receives.size(); left > 0; std::this_thread::yield()) {
    const bool is_last_look = std::chrono::steady_clock::now() >= limit;
    for (auto& in : batch.receives) {
      if (in.is_awaited && has_come(*in.end.communicator, kSender)) {
        in.is_awaited = false;
        --left;
        read_one(in.end, in.from, &in.arrival);
      }
    }
    if (is_last_look) {
      break;
    }
  }
  const Lock lock(mutex_);
  for (auto& in : batch.receives) {
    if (!in.arrival) {
      in.end.is_called |= in.is_awaited;
      release(in.end, is_wanted(in.from));
    }
  }
}

void Transfers::move(Batch& batch) {
  const auto sends = [](const Batch::Out& out) { return !out.error; };
  const auto receives = [](const Incoming& in) { return in.arrival.has_value(); };
  if (std::none_of(batch.sends.begin(), batch.sends.end(), sends) &&
      std::none_of(batch.receives.begin(), batch.receives.end(), receives)) {
    return;
  }
  std::exception_ptr error;
  try {
    const Doing doing{"rdmaccl:batch", settings_.timeout};
    for (const auto& out : batch.sends) {
      if (!out.error) {
        out.end.communicator->limit(out.message->work->getTimeout());
      }
    }
    for (const auto& in : batch.receives) {
      if (in.arrival) {
        in.end.communicator->limit(settings_.timeout);
      }
    }
    check(cclGroupStart(), doing);
    // Whatever is refused, the end of the group says.
    for (const auto& out : batch.sends) {
      if (!out.error) {
        cclSend(out.message->cargo.data(), out.message->bytes, cclUint8, kReceiver, out.end.communicator->get(), nullptr);
      }
    }
    for (auto& in : batch.receives) {
      if (in.arrival) {
        cclRecv(in.arrival->room(), in.arrival->bytes, cclUint8, kSender, in.end.communicator->get(), nullptr);
      }
    }
    check(cclGroupEnd(), doing);
    return;
  } catch (...) {
    error = std::current_exception();
  }
  fail(batch, words_of(error));
}

// Each may have stopped in its middle. One of the pairs has failed; those of the others are of no use any more because it has.
void Transfers::fail(Batch& batch, const std::string& words) {
  std::string text = "rdmaccl: a batch of transfers has failed: " + words;
  const auto look = [&](const End& end) {
    const auto state = end.communicator->health();
    if (state != cclSuccess && state != cclInvalidUsage) {
      text = end.doing + ", in a batch: " + words;
    }
  };
  for (const auto& out : batch.sends) {
    if (!out.error) {
      look(out.end);
    }
  }
  for (const auto& in : batch.receives) {
    if (in.arrival) {
      look(in.end);
    }
  }
  const auto error = failure(text);
  for (auto& out : batch.sends) {
    if (!out.error) {
      out.error = error;
      out.end.communicator->abort();
    }
  }
  for (auto& in : batch.receives) {
    if (in.arrival) {
      give_up(in, error);
      in.end.communicator->abort();
    }
  }
}

void Transfers::give_up(Incoming& in, const std::exception_ptr& error) {
  in.has_failed = true;
  if (in.arrival->match) {
    finish(*in.arrival->match, in.from, error);
  }
  fail_receives(in.end, in.from, error, false);
}

void Transfers::conclude(Batch& batch) {
  // The answers before the peers' are waited for.
  for (auto& in : batch.receives) {
    if (!in.arrival || in.has_failed) {
      continue;
    }
    try {
      answer(in.end, *in.arrival, in.from);
    } catch (...) {
      give_up(in, std::current_exception());
    }
  }
  for (auto& out : batch.sends) {
    try {
      if (!out.error) {
        out.end.unanswered.push_back(out.message->bytes);
        settle(out.end, out.to, 0, out.message->work->getTimeout());
      }
    } catch (...) {
      out.error = std::current_exception();
    }
    if (out.error) {
      out.error = blame(out.end, out.error);
    }
  }
  Lock lock(mutex_);
  for (auto& in : batch.receives) {
    if (in.arrival) {
      release(in.end, is_wanted(in.from));
    }
  }
  for (auto& out : batch.sends) {
    release(out.end, !out.end.queue.empty());
  }
  lock.unlock();
  for (auto& out : batch.sends) {
    const auto work = out.message->work;
    // What was sent goes before anybody learns that it was.
    out.message.reset();
    work->done(out.error);
  }
}

}  // namespace rdmaccl
