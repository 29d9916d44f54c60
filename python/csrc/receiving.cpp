// The receiver's end of transfers, and the door by which senders come in.
#include "pair.hpp"
#include "store.hpp"
#include "transfers.hpp"

#include <cstring>
#include <limits>
#include <utility>

namespace rdmaccl {

namespace {

// A receiver that listens waits for as long as it takes; that the other one dies it learns all the same.
constexpr milliseconds kForever{std::numeric_limits<int>::max()};

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

}  // namespace

bool Transfers::is_wanted(int from, size_t least) const {
  return std::any_of(receives_.begin(), receives_.end(), [&](const Recv& recv) {
    return (recv.from < 0 || recv.from == from) && recv.bytes >= least;
  });
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
  Lock lock(mutex_);
  int next = 1;
  while (!is_closing_) {
    knock_.wait(lock, [&] { return is_closing_ || needs_door() || is_connecting(); });
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
        End& end = receivers_.try_emplace(from, pair_settings(from, rank_), doing_of("recv from", from, kSender)).first->second;
        end.thread = thread([&end, from, id = invitation->id](Transfers& self) { self.run_receiver(end, from, id); });
        ++next;
        break;
      }
      knock_.wait_for(lock, pauses.next(), [&] { return is_closing_; });
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
  try {
    end.communicator->join(id, kReceiver, 2);
  } catch (...) {
    fail_receives(end, from, std::current_exception(), false);
  }
  Lock lock(mutex_);
  end.is_busy = false;
  while (true) {
    end.changed.wait(lock, [&] {
      return !end.is_busy && (is_closing_ || end.failure || (end.is_called && is_wanted(from)));
    });
    if (is_closing_ || end.failure) {
      break;
    }
    end.is_busy = true;
    lock.unlock();
    const bool goes_on = read_one(end, from);
    lock.lock();
    end.is_open |= goes_on;
    release(end, is_wanted(from));
  }
  lock.unlock();
  end.communicator->close();
}

bool Transfers::read_one(End& end, int from, std::optional<Arrival>* later) {
  bool is_orderly = false;
  try {
    if (accept(end, from, later)) {
      return true;
    }
    is_orderly = true;
    raise("rdmaccl: rank " + std::to_string(from) + " has shut its process group down, and sends nothing more");
  } catch (...) {
    fail_receives(end, from, std::current_exception(), is_orderly);
  }
  return false;
}

bool Transfers::accept(End& end, int from, std::optional<Arrival>* later) {
  auto arrival = meet(end, from);
  if (!arrival) {
    return false;
  }
  if (later != nullptr && arrival->bytes > kShort) {
    later->emplace(std::move(*arrival));
    return true;
  }
  try {
    if (arrival->bytes > 0) {
      take(*end.communicator, arrival->room(), arrival->bytes, kSender, settings_.timeout, end.doing.c_str());
    }
    answer(end, *arrival, from);
  } catch (...) {
    if (arrival->match) {
      finish(*arrival->match, from, std::current_exception());
    }
    throw;
  }
  return true;
}

std::optional<Transfers::Arrival> Transfers::meet(End& end, int from) {
  Header header{};
  take(*end.communicator, &header, sizeof header, kSender, kForever, end.doing.c_str());
  if (header.is_last != 0) {
    return std::nullopt;
  }
  Arrival arrival{header.bytes, std::nullopt, {from, static_cast<int>(header.tag), {}}};
  Lock lock(mutex_);
  arrival.match = claim(from, arrival.kept.tag);
  lock.unlock();
  if (!arrival.fits()) {
    arrival.kept.bytes.resize(header.bytes);
  }
  return arrival;
}

void Transfers::answer(End& end, Arrival& arrival, int from) {
  const Answer answer{arrival.match ? arrival.match->bytes : arrival.bytes};
  put(*end.communicator, &answer, sizeof answer, kSender, settings_.timeout, end.doing.c_str());
  const bool fits = arrival.fits();
  auto match = std::exchange(arrival.match, std::nullopt);
  if (match) {
    finish(*match, from, fits ? nullptr : mismatch(from, rank_, arrival.bytes, match->bytes));
    return;
  }
  Lock lock(mutex_);
  // Its receive may have been issued meanwhile.
  match = claim(from, arrival.kept.tag);
  if (!match) {
    kept_.push_back(std::move(arrival.kept));
    return;
  }
  lock.unlock();
  fill(*match, arrival.kept);
}

void Transfers::fail_receives(End& end, int from, const std::exception_ptr& error, bool is_orderly) {
  std::list<Recv> failing;
  std::unique_lock lock(mutex_);
  end.failure = error;
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

}  // namespace rdmaccl
