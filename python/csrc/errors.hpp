// Errors of the C library as PyTorch's.
#pragma once

#include <ccl.h>

#include <exception>
#include <string>

namespace rdmaccl {

// What a call of the library came to that did not end with `cclSuccess`: `torch.distributed.DistBackendError` in Python,
// with the library's own words and what was being done.
[[noreturn]] void raise(cclResult_t result, const char* doing);

// The same, to be raised elsewhere. Must be called on the thread on which the library has said so.
std::exception_ptr failure(cclResult_t result, const char* doing);

// Raises a `DistBackendError` of our own.
[[noreturn]] void raise(const std::string& words);

inline void check(cclResult_t result, const char* doing) {
  if (result != cclSuccess) [[unlikely]] {
    raise(result, doing);
  }
}

}  // namespace rdmaccl
