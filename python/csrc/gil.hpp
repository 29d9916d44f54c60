// Python's lock, where a thread that waits may hold it.
#pragma once

#include <Python.h>

namespace rdmaccl {

// Gives the lock back for as long as it lives, if this thread has it: threads that are waited for may need it.
class WithoutGil {
 public:
  WithoutGil() : saved_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (saved_ != nullptr) {
      PyEval_RestoreThread(saved_);
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* saved_;
};

}  // namespace rdmaccl
