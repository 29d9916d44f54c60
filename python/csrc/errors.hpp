// Errors of the C library as PyTorch's.
#pragma once

#include <ccl.h>

#include <chrono>
#include <exception>
#include <string>

namespace rdmaccl {

// What is said of a call that has failed: what was done, and since when under what limit.
struct Doing {
  const char* what;
  // None: longer than anybody waits.
  std::chrono::milliseconds timeout = std::chrono::hours(24 * 365);
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

// What a call of the library came to that did not end with `cclSuccess`: `torch.distributed.DistBackendError` in Python,
// with the library's own words. Must be called on the thread on which the library has said so.
[[noreturn]] void raise(cclResult_t result, const Doing& doing);

// The same, to be raised elsewhere.
std::exception_ptr failure(cclResult_t result, const Doing& doing);

// A `DistBackendError` with words of our own.
[[noreturn]] void raise(const std::string& words);
std::exception_ptr failure(const std::string& words);

// What an error says.
std::string words_of(const std::exception_ptr& error);

inline void check(cclResult_t result, const Doing& doing) {
  if (result != cclSuccess) [[unlikely]] {
    raise(result, doing);
  }
}

inline void check(cclResult_t result, const char* what) {
  if (result != cclSuccess) [[unlikely]] {
    raise(result, Doing{what});
  }
}

}  // namespace rdmaccl
