#include "errors.hpp"

#include <c10/util/Exception.h>

namespace rdmaccl {

void raise(const std::string& words) {
  C10_THROW_ERROR(DistBackendError, words);
}

void raise(cclResult_t result, const Doing& doing) {
  // The words of this thread's last error: the communicator's own may be an older one.
  const char* words = cclGetLastError(nullptr);
  if (words == nullptr || *words == '\0') {
    words = cclGetErrorString(result);
  }
  std::string text = std::string(doing.what) + ": " + words;
  if (std::chrono::steady_clock::now() - doing.since >= doing.timeout) {
    text += " (the timeout of " + std::to_string(doing.timeout.count()) + " ms is over)";
  }
  raise(text);
}

std::exception_ptr failure(const std::string& words) {
  try {
    raise(words);
  } catch (...) {
    return std::current_exception();
  }
}

std::exception_ptr failure(cclResult_t result, const Doing& doing) {
  try {
    raise(result, doing);
  } catch (...) {
    return std::current_exception();
  }
}

std::string words_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& known) {
    return known.what_without_backtrace();
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "an error of no known kind";
  }
}

}  // namespace rdmaccl
