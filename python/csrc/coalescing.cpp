// Calls that are waited for as one.
#include "process_group.hpp"

#include "transfers.hpp"

#include <algorithm>
#include <utility>

namespace rdmaccl {

namespace {

class AllOf final : public c10d::Work {
 public:
  AllOf(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
  }
  bool wait(milliseconds timeout) override {
    TransferWork::carry(works_, timeout);
    for (const auto& work : works_) {
      work->wait(timeout);
    }
    return true;
  }
  void synchronize() override {
    TransferWork::carry(works_, kNoTimeout);
    for (const auto& work : works_) {
      work->synchronize();
    }
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const auto& work : works_) {
      const auto tensors = work->result();
      all.insert(all.end(), tensors.begin(), tensors.end());
    }
    return all;
  }
  // Of the works' futures: each gives its own tensors.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> ends(
        c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
    for (const auto& work : works_) {
      ends.push_back(work->getFuture());
    }
    return c10::collectAll(ends);
  }

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::remember(WorkPtr work) {
  if (is_coalescing_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(coalescing_);
    coalesced_.push_back(work);
  }
  return work;
}

void ProcessGroupRdmaccl::startCoalescing() {
  const std::lock_guard lock(coalescing_);
  // Of those that an exception has kept from their end each goes its own way.
  coalesced_.clear();
  is_coalescing_ = true;
}

ProcessGroupRdmaccl::WorkPtr ProcessGroupRdmaccl::endCoalescing() {
  TORCH_CHECK(is_coalescing_.exchange(false), "rdmaccl: endCoalescing() without a startCoalescing()");
  const std::lock_guard lock(coalescing_);
  return c10::make_intrusive<AllOf>(rank_, std::exchange(coalesced_, {}));
}

}  // namespace rdmaccl
