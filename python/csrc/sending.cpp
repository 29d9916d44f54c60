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

void Transfers::deliver(End& end, const Send& message, int to) {
  const auto limit = message.work->getTimeout();
  message.cargo.load();
  const Header header{message.tag, message.bytes, 0};
  auto& pair = *end.communicator;
  put(pair, &header, sizeof header, kReceiver, limit, "rdmaccl:send");
  if (message.bytes > 0) {
    put(pair, message.cargo.data(), message.bytes, kReceiver, limit, "rdmaccl:send");
  }
  Answer answer{};
  take(pair, &answer, sizeof answer, kReceiver, limit, "rdmaccl:send");
  if (answer.room != message.bytes) {
    std::rethrow_exception(mismatch(rank_, to, message.bytes, answer.room));
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
    std::optional<Send> message(std::move(end.queue.front()));
    end.queue.pop_front();
    end.is_busy = true;
    lock.unlock();
    const auto error = send_one(end, *message, to);
    const auto work = message->work;
    // What was sent goes before anybody learns that it was.
    message.reset();
    work->done(error);
    lock.lock();
    end.is_busy = false;
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
      put(*end.communicator, &last, sizeof last, kReceiver, milliseconds(1000), "rdmaccl:leaving");
    } catch (...) {
      // The receiver learns by other ways that nothing comes any more.
    }
  }
  end.communicator->close();
}

}  // namespace rdmaccl
