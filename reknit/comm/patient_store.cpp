#include "reknit/comm/patient_store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace reknit {

PatientStore::PatientStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds limit)
    : store_(std::move(store)), limit_(limit) {}

PatientStore PatientStore::connection(const std::string& prefix,
                                      std::chrono::milliseconds timeout) const {
  auto own = answer_within(limit_, [store = store_] { return store->clone(); });
  own->setTimeout(timeout);
  return {c10::make_intrusive<c10d::PrefixStore>(prefix, own), timeout + kAnswer};
}

bool PatientStore::check(const std::vector<std::string>& keys) const {
  return answer_within(limit_, [store = store_, keys] { return store->check(keys); });
}

int64_t PatientStore::add(const std::string& key, int64_t value) const {
  return answer_within(limit_, [store = store_, key, value] { return store->add(key, value); });
}

void PatientStore::set(const std::string& key, const std::string& value) const {
  answer_within(limit_, [store = store_, key, value] { store->set(key, value); });
}

std::string PatientStore::get(const std::string& key) const {
  return answer_within(limit_, [store = store_, key] { return store->get_to_str(key); });
}

void PatientStore::remove(const std::string& key) const {
  answer_within(limit_, [store = store_, key] { store->deleteKey(key); });
}

}  // namespace reknit
