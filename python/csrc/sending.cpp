// The sender's end of transfers.
#include "pair.hpp"
#include "transfers.hpp"

namespace rdmaccl {

void Transfers::connect_to(End& end, int to) {
  Invitation invitation{rank_, {}};
  check(cclGetUniqueId(&invitation.id), "rdmaccl: making an id for transfers");
  const auto number = store_->add(inbox(to), 1);
  const auto* bytes = reinterpret_cast<const uint8_t*>(&invitation);
  store_->set(inbox(to) + "/" + std::to_string(number), std::vector<uint8_t>(bytes, bytes + sizeof invitation));
  end.communicator->join(invitation.id, kSender, 2);
}

void Transfers::settle(End& end, int to, size_t most, milliseconds limit) {
  while (end.unanswered.size() > most) {
    Answer answer{};
    take(*end.communicator, &answer, sizeof answer, kReceiver, limit, end.doing.c_str());
    const auto sent = end.unanswered.front();
    end.unanswered.pop_front();
    if (answer.room != sent) {
      std::rethrow_exception(mismatch(rank_, to, sent, answer.room));
    }
  }
}

void Transfers::send_header(End& end, const Send& message) {
  message.cargo.load();
  const Header header{message.tag, message.bytes, 0};
  put(*end.communicator, &header, sizeof header, kReceiver, message.work->getTimeout(), end.doing.c_str());
}

void Transfers::deliver(End& end, const Send& message, int to) {
  const auto limit = message.work->getTimeout();
  send_header(end, message);
  const bool is_short = message.bytes <= kShort && end.is_open;
  if (message.bytes > 0) {
    const void* data = message.cargo.data();
    if (is_short) {
      // From memory that the receiver can read, it would take the bytes itself, and the send would wait until it has.
      const auto* bytes = static_cast<const char*>(data);
      end.copy.assign(bytes, bytes + message.bytes);
      data = end.copy.data();
    }
    put(*end.communicator, data, message.bytes, kReceiver, limit, end.doing.c_str());
  }
  end.unanswered.push_back(message.bytes);
  settle(end, to, is_short ? kMostUnanswered : 0, limit);
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
    return blame(end, std::current_exception());
  }
}

std::exception_ptr Transfers::blame(End& end, const std::exception_ptr& error) {
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

void Transfers::carry_next(End& end, int to, Lock& lock) {
  std::optional<Send> message(std::move(end.queue.front()));
  end.queue.pop_front();
  end.is_busy = true;
  lock.unlock();
  const auto error = send_one(end, *message, to);
  const auto work = message->work;
  // What was sent goes before anybody learns that it was.
  message.reset();
  lock.lock();
  end.is_open |= !error;
  release(end, !end.queue.empty());
  lock.unlock();
  work->done(error);
  lock.lock();
}

void Transfers::run_sender(End& end, int to) {
  Lock lock(mutex_);
  end.is_busy = false;
  while (true) {
    end.changed.wait(lock, [&] {
      return !end.is_busy && (is_closing_ || end.failure || (end.is_called && !end.queue.empty()));
    });
    if (is_closing_ || end.failure) {
      break;
    }
    carry_next(end, to, lock);
  }
  const bool says_goodbye = !end.is_connecting && !end.failure;
  end.is_connecting = false;
  if (!end.failure) {
    end.failure = failure("rdmaccl: the process group was shut down before this send began");
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
      // What was handed over is lost to a receiver that has not taken it before this rank goes.
      settle(end, to, 0, settings_.timeout);
      put(*end.communicator, &last, sizeof last, kReceiver, milliseconds(1000), "rdmaccl:leaving");
    } catch (...) {
      // The receiver learns by other ways that nothing comes any more.
    }
  }
  end.communicator->close();
}

}  // namespace rdmaccl
