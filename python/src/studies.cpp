#include "python/src/module.hpp"
#include "python/src/options.hpp"

#include <string>

#include <nanobind/stl/string.h>
#include <nlohmann/json.hpp>

#include "apps/lab/plan/plan.hpp"
#include "apps/lab/plan/plan_request.hpp"
#include "apps/lab/simulate/simulation.hpp"
#include "apps/lab/simulate/simulation_report.hpp"

namespace gossamer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

std::string simulate(const std::string& yaml, int num_threads) {
  const apps::SimulationConfig config =
      apps::read_simulation(given_options(yaml), {.topologies = own_topologies()});
  const apps::SimulationResult result = apps::simulate(config, num_threads);
  return apps::to_json(config, result, apps::gap_of(config)).dump();
}

std::string plan(const std::string& yaml) {
  const apps::PlanRequest request =
      apps::read_plan(given_options(yaml), {.topologies = own_topologies()});
  return apps::to_json(request, apps::make_plan(request.options)).dump();
}

}  // namespace

void add_studies(nb::module_& module) {
  using Free = nb::call_guard<nb::gil_scoped_release>;
  module.def("simulate", &simulate, "yaml"_a, "num_threads"_a, Free());
  module.def("plan", &plan, "yaml"_a, Free());
}

}  // namespace gossamer::python
