#include "communicator.hpp"

#include "store.hpp"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <memory>

namespace rdmaccl {

namespace {

int in_milliseconds(milliseconds time) {
  return static_cast<int>(std::clamp<int64_t>(time.count(), 1, INT_MAX));
}

// What a stream's callback needs.
struct Pending {
  c10::intrusive_ptr<RdmacclWork> work;
  Communicator::After after;
  Doing doing;
};

// The library's callback: nothing may be thrown through it.
void over(cclResult_t result, void* data) noexcept {
  const std::unique_ptr<Pending> pending(static_cast<Pending*>(data));
  auto work = std::move(pending->work);
  std::exception_ptr error;
  try {
    if (result != cclSuccess) {
      error = failure(result, pending->doing);
    } else if (pending->after) {
      pending->after();
    }
  } catch (...) {
    error = std::current_exception();
  }
  // What the call needed goes before anybody learns that it is over.
  pending->after = nullptr;
  try {
    work->done(error);
  } catch (...) {
    // A continuation of the future has failed; futures keep such errors themselves.
  }
}

}  // namespace

Communicator::Communicator(Settings settings) : settings_(std::move(settings)), timeout_(settings_.timeout) {}

void Communicator::join(const cclUniqueId& id, int rank, int size) {
  cclConfig_t config = CCL_CONFIG_INITIALIZER;
  config.timeoutMs = config.initTimeoutMs = in_milliseconds(settings_.timeout);
  config.commName = settings_.name.c_str();
  if (!settings_.algorithm.empty()) {
    config.algorithm = settings_.algorithm.c_str();
  }
  if (!settings_.transport.empty()) {
    config.network = settings_.transport.c_str();
  }
  check(cclCommInitRankConfig(&comm_, size, id, rank, &config), "rdmaccl: joining the process group");
}

Communicator::~Communicator() {
  close();
}

void Communicator::fail(cclResult_t result, const Doing& call) const {
  if (closed_) {
    raise(std::string(call.what) + ": the process group was shut down");
  }
  raise(result, call);
}

void Communicator::set_timeout(milliseconds timeout) {
  check_call(cclCommSetTimeout(comm_, in_milliseconds(timeout)), Doing{"rdmaccl: setting a timeout"});
  timeout_.store(timeout, std::memory_order_relaxed);
}

cclStream_t Communicator::stream() {
  if (stream_ == nullptr) {
    check(cclHostStreamCreate(&stream_), "rdmaccl: making a stream");
  }
  return stream_;
}

void Communicator::enqueue(
    c10::intrusive_ptr<RdmacclWork> work,
    const Issue& issue,
    After after,
    milliseconds timeout,
    const char* doing) {
  auto pending = std::make_unique<Pending>(Pending{std::move(work), std::move(after), {doing, timeout}});
  const std::lock_guard lock(order_);
  // Nobody would destroy a stream that is made from now on.
  if (closed_) {
    fail(cclInvalidUsage, pending->doing);
  }
  limit(timeout);
  check_call(issue(stream()), pending->doing);
  check(cclHostStreamAddCallback(stream_, over, pending.get()), doing);
  // The callback's from now on.
  static_cast<void>(pending.release());
}

void Communicator::abort() {
  const auto comm = std::atomic_ref(comm_).load();
  if (comm != nullptr) {
    cclCommAbort(comm);
  }
}

void Communicator::close() {
  if (closed_.exchange(true)) {
    return;
  }
  // An error has been reported by the call that has met it; an aborted communicator is gone already.
  if (stream_ != nullptr) {
    cclHostStreamDestroy(stream_);
  }
  if (comm_ != nullptr) {
    last_fault_ = fault();
    const auto destroyed = cclCommDestroy(comm_);
    if (destroyed != cclSuccess && !last_fault_) {
      last_fault_ = failure(destroyed, Doing{"rdmaccl: leaving the process group"});
    }
    is_gone_.store(true, std::memory_order_release);
  }
}

cclResult_t Communicator::health() const {
  cclResult_t state = cclSuccess;
  const cclResult_t asked = cclCommGetAsyncError(comm_, &state);
  return asked == cclSuccess ? state : asked;
}

std::exception_ptr Communicator::fault() const {
  if (is_gone_.load(std::memory_order_acquire)) {
    return last_fault_;
  }
  const auto state = health();
  if (state == cclSuccess || state == cclInProgress) {
    return nullptr;
  }
  return failure(std::string("rdmaccl: ") + cclGetLastError(comm_));
}

std::string Communicator::describe() const {
  const char* text = cclCommDescribe(comm_);
  check(text != nullptr ? cclSuccess : cclInvalidUsage, "rdmaccl: describing a process group");
  return text;
}

cclUniqueId exchange_id(c10d::Store& store, const std::string& key, int rank, milliseconds timeout) {
  cclUniqueId id{};
  if (rank == 0) {
    check(cclGetUniqueId(&id), "rdmaccl: making an id for the process group");
    const auto* bytes = reinterpret_cast<const uint8_t*>(&id);
    store.set(key, std::vector<uint8_t>(bytes, bytes + sizeof id));
    return id;
  }
  if (!await(store, key, Deadline(timeout))) {
    raise("rdmaccl: joining the process group: rank 0 has not come in " + std::to_string(timeout.count()) + " ms");
  }
  const auto bytes = store.get(key);
  TORCH_CHECK(bytes.size() == sizeof id, "rdmaccl: the store has ", bytes.size(), " bytes in place of an id");
  std::memcpy(&id, bytes.data(), sizeof id);
  return id;
}

}  // namespace rdmaccl
