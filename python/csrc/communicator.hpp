// The library's communicator and stream behind a process group.
#pragma once

#include "errors.hpp"
#include "work.hpp"

#include <ccl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <mutex>
#include <string>

namespace rdmaccl {

// A communicator's settings.
struct Settings {
  std::string name;
  // Empty: the fastest.
  std::string algorithm;
  // What carries pieces between hosts: `auto`, `ib` or `tcp`; empty: what the environment says.
  std::string transport;
  milliseconds timeout;
};

// Owns a `cclComm_t`. Every function may be called from any thread.
class Communicator {
 public:
  explicit Communicator(Settings settings);
  // Closes it.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Joins the ranks that were given the same id. Meanwhile another thread may abort it.
  void join(const cclUniqueId& id, int rank, int size);

  cclComm_t get() const {
    return comm_;
  }

  // What calls that are issued from now on may wait.
  void limit(milliseconds timeout) {
    if (timeout != timeout_.load(std::memory_order_relaxed)) [[unlikely]] {
      set_timeout(timeout);
    }
  }

  // What makes a call of the library, on a stream or, NULL, on this thread.
  template <class Issue>
  void run(Issue&& issue, milliseconds timeout, const char* doing) {
    limit(timeout);
    const Doing call{doing, timeout};
    check_call(issue(cclStream_t{}), call);
  }

  // Makes a call on the stream. When it is over, `after` is run on the stream's thread, if the call went well, and then the
  // work is ended.
  using Issue = std::function<cclResult_t(cclStream_t)>;
  using After = std::function<void()>;
  void enqueue(c10::intrusive_ptr<RdmacclWork> work, const Issue& issue, After after, milliseconds timeout, const char* doing);

  // Makes a call that goes to a device's stream, and returns when it is enqueued there.
  template <class Issue>
  void submit(Issue&& issue, cclStream_t stream, milliseconds timeout, const char* doing) {
    const std::lock_guard lock(order_);
    limit(timeout);
    check_call(issue(stream), Doing{doing, timeout});
  }

  // Ends all calls, here and at the other ranks.
  void abort();
  // Waits for the calls that were issued, and leaves.
  void close();
  // How it is, without waiting; and the same as an error, or none. After `close`, how it was in the end.
  cclResult_t health() const;
  std::exception_ptr fault() const;
  std::string describe() const;

 private:
  void set_timeout(milliseconds timeout);
  cclStream_t stream();
  void check_call(cclResult_t result, const Doing& call) const {
    if (result != cclSuccess) [[unlikely]] {
      fail(result, call);
    }
  }
  // Of a call that comes too late the library knows only a handle that is none any more.
  [[noreturn]] void fail(cclResult_t result, const Doing& call) const;

  Settings settings_;
  // Written by the library while it joins.
  cclComm_t comm_ = nullptr;
  std::atomic<bool> closed_ = false;
  // What was wrong in the end, if something was; written before it is closed.
  std::exception_ptr last_fault_;
  std::atomic<bool> is_gone_ = false;
  // What calls that are issued now wait at the most.
  std::atomic<milliseconds> timeout_;
  // Held while a call and its callback are put on the stream: they follow each other.
  std::mutex order_;
  cclStream_t stream_ = nullptr;
};

// Brings rank 0's id to the others.
cclUniqueId exchange_id(c10d::Store& store, const std::string& key, int rank, milliseconds timeout);

}  // namespace rdmaccl
