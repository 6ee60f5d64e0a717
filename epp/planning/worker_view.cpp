#include "epp/planning/worker_view.hpp"

#include <algorithm>
#include <utility>

#include "epp/discovery/endpoint_source.hpp"

namespace handoff::epp {

std::optional<WorkerId> WorkerView::at(const Addresses& addresses, std::string_view address) {
  const auto* found = addresses.find(std::string(address));
  if (found == nullptr) return std::nullopt;
  return found->front();
}

void WorkerView::put(WorkerId id, Known known) {
  if (const Known* const before = find(id); before != nullptr && *before == known) return;
  erase(id);
  auto& ids =
      (known.is_prefill ? prefills_ : destinations_).change(socket_address(known.address, known.port));
  ids.insert(std::lower_bound(ids.begin(), ids.end(), id), id);
  workers_.change(id) = std::move(known);
  ++size_;
}

void WorkerView::erase(WorkerId id) {
  const Known* const known = workers_.find(id);
  if (known == nullptr) return;
  const std::string address = socket_address(known->address, known->port);
  Addresses& addresses = known->is_prefill ? prefills_ : destinations_;
  auto& ids = addresses.change(address);
  std::erase(ids, id);
  if (ids.empty()) addresses.erase(address);
  workers_.erase(id);
  --size_;
}

WorkerView WorkerView::share() {
  return {workers_.share(), destinations_.share(), prefills_.share(), size_};
}

}  // namespace handoff::epp
