// The life of a process group.
// Python's header has to be the first.
#include "gil.hpp"

#include "process_group.hpp"

#include "ending.hpp"
#include "errors.hpp"
#include "make.hpp"
#include "transfers.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

namespace rdmaccl {

namespace {

constexpr auto kIdKey = "rdmaccl/id";

// A few characters that tell this group from those before it, and do not give its id away.
std::string token_of(const cclUniqueId& id) {
  return std::to_string(std::hash<std::string_view>{}({id.internal, sizeof id.internal}));
}

}  // namespace

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupRdmaccl::Options::clone() const {
  return c10::make_intrusive<Options>(*this);
}

c10::intrusive_ptr<ProcessGroupRdmaccl> ProcessGroupRdmaccl::create(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    c10::intrusive_ptr<Options> options) {
  auto group = c10::make_intrusive<ProcessGroupRdmaccl>(std::move(store), rank, size, std::move(options));
  ending::enroll(group);
  return group;
}

ProcessGroupRdmaccl::ProcessGroupRdmaccl(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    c10::intrusive_ptr<Options> options)
    : Backend(rank, size), options_(std::move(options)), timeout_(options_->timeout) {
  const auto id = exchange_id(*store, kIdKey, rank, options_->timeout);
  token_ = token_of(id);
  store_ = c10::make_intrusive<c10d::PrefixStore>("rdmaccl/" + token_, store);
  communicator_ = std::make_unique<Communicator>(settings());
  join(*communicator_, *store, kIdKey, id);
  const auto fault = [group = communicator_.get()] { return group->fault(); };
  transfers_ = std::make_shared<Transfers>(store_, rank, size, settings(), fault);
  init();
}

ProcessGroupRdmaccl::~ProcessGroupRdmaccl() {
  // Dropped by Python, maybe; continuations of calls that run may need its lock.
  const WithoutGil released;
  shutdown();
}

void ProcessGroupRdmaccl::join(
    Communicator& communicator,
    c10d::Store& store,
    const std::string& key,
    const cclUniqueId& id) {
  // All that have joined have read it, and who comes too late must not; nor must the next group on this store.
  const auto forget_id = [&] {
    if (rank_ == 0) {
      store.deleteKey(key);
    }
  };
  try {
    communicator.join(id, rank_, size_);
  } catch (...) {
    forget_id();
    throw;
  }
  forget_id();
}

std::shared_ptr<DeviceQueue> ProcessGroupRdmaccl::queue_for(at::Device device) {
  const auto known = [&]() -> std::shared_ptr<DeviceQueue> {
    const auto found = queues_.find(device.index());
    return found != queues_.end() && found->second->is_joined() ? found->second : nullptr;
  };
  {
    const std::lock_guard lock(devices_);
    if (auto queue = known()) [[likely]] {
      return queue;
    }
  }
  const std::lock_guard alone(joining_);
  auto its_settings = settings();
  its_settings.name += " " + device.str();
  auto queue = std::make_shared<DeviceQueue>(std::move(its_settings), device);
  {
    const std::lock_guard lock(devices_);
    if (auto other = known()) {
      return other;
    }
    TORCH_CHECK(!is_closed_, "rdmaccl: a call on a process group that was shut down");
    // From now on `abort` finds it.
    queues_[device.index()] = queue;
  }
  // The devices' numbers are each rank's own; that it is the group's first or second device is the same for all.
  const auto key = "device/" + std::to_string(queues_made_++);
  join(queue->communicator(), *store_, key, exchange_id(*store_, key, rank_, timeout_.load()));
  queue->set_joined();
  return queue;
}

std::vector<std::shared_ptr<DeviceQueue>> ProcessGroupRdmaccl::queues() const {
  std::vector<std::shared_ptr<DeviceQueue>> all;
  const std::lock_guard lock(devices_);
  for (const auto& [index, queue] : queues_) {
    all.push_back(queue);
  }
  return all;
}

at::Device ProcessGroupRdmaccl::barrier_place(const c10d::BarrierOptions& opts) const {
  if (!opts.device_ids.empty()) {
    return {at::kCUDA, static_cast<c10::DeviceIndex>(opts.device_ids[0])};
  }
  const auto bound = getBoundDeviceId();
  return bound && bound->is_cuda() && bound->has_index() ? *bound : at::kCPU;
}

void ProcessGroupRdmaccl::eagerConnectSingleDevice(at::Device device) {
  if (device.is_cuda()) {
    queue_for(device);
  }
}

Settings ProcessGroupRdmaccl::settings() const {
  return {options_->group_name, options_->algorithm, options_->transport, options_->timeout};
}

template <class Start>
ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::transfer(
    const Title& title,
    Tensors& tensors,
    Cargo cargo,
    Start start) {
  auto work = c10::make_intrusive<TransferWork>(rank_, title, tensors, getSequenceNumberForGroup(), timeout_.load());
  work->set_outputs(tensors);
  try {
    start(work, std::move(cargo), tensors[0].nbytes());
  } catch (...) {
    work->done(std::current_exception());
    throw;
  }
  return remember(work);
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::send(Tensors& tensors, int to, int tag) {
  const auto start = [&](auto work, auto cargo, size_t bytes) { transfers_->send(work, cargo, bytes, to, tag); };
  return transfer({c10d::OpType::SEND, "rdmaccl:send"}, tensors, Cargo::sent(only(tensors)), start);
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::recv(Tensors& tensors, int from, int tag) {
  TORCH_CHECK_VALUE(from >= 0, "rdmaccl: there is no rank ", from, " to receive from");
  const auto start = [&](auto work, auto cargo, size_t bytes) { transfers_->recv(work, cargo, bytes, from, tag); };
  return transfer({c10d::OpType::RECV, "rdmaccl:recv"}, tensors, Cargo::received(only(tensors)), start);
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::recvAnysource(Tensors& tensors, int tag) {
  const auto start = [&](auto work, auto cargo, size_t bytes) { transfers_->recv(work, cargo, bytes, -1, tag); };
  return transfer({c10d::OpType::RECVANYSOURCE, "rdmaccl:recvAnySource"}, tensors, Cargo::received(only(tensors)), start);
}

uint64_t ProcessGroupRdmaccl::getSequenceNumberForGroup() {
  return sequence_.load(std::memory_order_relaxed);
}

void ProcessGroupRdmaccl::setTimeout(milliseconds timeout) {
  options_->timeout = timeout;
  timeout_.store(timeout, std::memory_order_relaxed);
}

c10d::ErrorType ProcessGroupRdmaccl::getError() {
  auto health = communicator_->health();
  for (const auto& queue : queues()) {
    if (health == cclSuccess) {
      health = queue->communicator().health();
    }
  }
  switch (health) {
    case cclSuccess:
    case cclInProgress:
      return c10d::ErrorType::SUCCESS;
    case cclRemoteError:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupRdmaccl::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) {
    return nullptr;
  }
  auto options = c10::dynamic_intrusive_pointer_cast<Options>(opts);
  if (!options) {
    options = c10::make_intrusive<Options>(*options_);
    if (opts) {
      options->timeout = opts->timeout;
      options->group_name = opts->group_name;
    }
  }
  return create(store, static_cast<int>(place - ranks.begin()), static_cast<int>(ranks.size()), options);
}

void ProcessGroupRdmaccl::abort() {
  transfers_->abort();
  for (const auto& queue : queues()) {
    queue->communicator().abort();
  }
  communicator_->abort();
}

void ProcessGroupRdmaccl::shutdown() {
  if (transfers_) {
    transfers_->close();
  }
  {
    const std::lock_guard lock(devices_);
    is_closed_ = true;
  }
  for (const auto& queue : queues()) {
    queue->communicator().close();
  }
  communicator_->close();
}

}  // namespace rdmaccl
