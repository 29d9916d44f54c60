// Waiting for keys of a store. A store's own `wait` keeps other threads from it meanwhile; looking again and again does not.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

namespace rdmaccl {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(std::chrono::milliseconds timeout) : at_(Clock::now() + timeout) {}
  bool is_over() const {
    return Clock::now() >= at_;
  }

 private:
  Clock::time_point at_;
};

// Pauses that grow from a tenth of a millisecond to ten.
class Pauses {
 public:
  std::chrono::microseconds next() {
    const auto pause = pause_;
    pause_ = std::min(pause_ * 2, std::chrono::microseconds(10'000));
    return pause;
  }

 private:
  std::chrono::microseconds pause_{100};
};

// Whether the key is there before the deadline; looks at least once.
inline bool await(c10d::Store& store, const std::string& key, const Deadline& deadline) {
  for (Pauses pauses; !store.check({key});) {
    if (deadline.is_over()) {
      return false;
    }
    std::this_thread::sleep_for(pauses.next());
  }
  return true;
}

}  // namespace rdmaccl
