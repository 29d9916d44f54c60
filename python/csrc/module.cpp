// The Python module.
#include "ending.hpp"
#include "process_group.hpp"
#include "shared_memory.hpp"
#include "transfers.hpp"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

namespace py = pybind11;

using rdmaccl::ProcessGroupRdmaccl;
using Options = ProcessGroupRdmaccl::Options;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "rdmaccl's process-group backend, for one minor version of PyTorch";
  module.attr("torch_version") = py::make_tuple(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);

  // The classes that these derive from.
  py::module_::import("torch._C._distributed_c10d");

  // Known by their own types, or pybind would look for them in vain whenever it hands one to Python, by name.
  py::class_<rdmaccl::RdmacclWork, c10d::Work, c10::intrusive_ptr<rdmaccl::RdmacclWork>>(module, "Work");
  py::class_<rdmaccl::TransferWork, rdmaccl::RdmacclWork, c10::intrusive_ptr<rdmaccl::TransferWork>>(
      module, "TransferWork");

  module.def("share_from", &rdmaccl::shared_memory::share_from, py::arg("bytes"));
  module.def("shared_bytes", [] {
    const auto bytes = rdmaccl::shared_memory::bytes();
    return py::make_tuple(bytes.used, bytes.reserved);
  });

  module.def(
      "shut_down_all",
      &rdmaccl::ending::shut_down_all,
      py::call_guard<py::gil_scoped_release>(),
      py::arg("grace"));

  auto group = py::class_<ProcessGroupRdmaccl, c10d::Backend, c10::intrusive_ptr<ProcessGroupRdmaccl>>(
      module, "ProcessGroupRdmaccl", "A process group on rdmaccl");

  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(
      group, "Options", "Options of one process group: init_process_group(..., pg_options=Options(...))")
      .def(
          py::init([](const std::optional<std::string>& algorithm,
                      std::optional<std::chrono::milliseconds> timeout,
                      const std::optional<std::string>& transport) {
            auto options = c10::make_intrusive<Options>(timeout.value_or(kBackendDefaultTimeout));
            options->algorithm = algorithm.value_or("");
            options->transport = transport.value_or("");
            options->has_timeout = timeout.has_value();
            return options;
          }),
          py::kw_only(),
          py::arg("algorithm") = py::none(),
          py::arg("timeout") = py::none(),
          py::arg("transport") = py::none())
      .def_readwrite("algorithm", &Options::algorithm, "The algorithm of all collectives that it can do; '': the fastest")
      .def_readwrite("transport", &Options::transport, "What carries data between hosts: auto, ib, tcp; '': RDMACCL_NET")
      .def_readonly("has_timeout", &Options::has_timeout, "Whether a timeout was given");

  group
      .def(
          py::init(&ProcessGroupRdmaccl::create),
          py::call_guard<py::gil_scoped_release>(),
          py::arg("store"),
          py::arg("rank"),
          py::arg("size"),
          py::arg("options"))
      .def_property_readonly("options", &ProcessGroupRdmaccl::options)
      .def(
          "describe",
          &ProcessGroupRdmaccl::describe,
          py::call_guard<py::gil_scoped_release>(),
          "What the library says of the communicator, as JSON");
}
