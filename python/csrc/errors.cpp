#include "errors.hpp"

#include <c10/util/Exception.h>

namespace rdmaccl {

void raise(const std::string& words) {
  C10_THROW_ERROR(DistBackendError, words);
}

void raise(cclResult_t result, const char* doing) {
  // The words of this thread's last error: the communicator's own may be an older one.
  const char* words = cclGetLastError(nullptr);
  if (words == nullptr || *words == '\0') {
    words = cclGetErrorString(result);
  }
  raise(std::string("rdmaccl: ") + doing + ": " + words);
}

std::exception_ptr failure(cclResult_t result, const char* doing) {
  try {
    raise(result, doing);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace rdmaccl
