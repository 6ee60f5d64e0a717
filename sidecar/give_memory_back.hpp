// Emptying a string or vector so that its memory is really freed.
#pragma once

namespace handoff::sidecar {

/// Assigning an empty value keeps the capacity; only a swap lets go of it.
template <class Container>
void give_memory_back(Container& container) {
  Container().swap(container);
}

}  // namespace handoff::sidecar
