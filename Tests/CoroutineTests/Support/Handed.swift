/// Carries a generator to another thread, or into a job, between two steps.
struct Handed<Value>: @unchecked Sendable {
  // Sound because a test hands it over and does not touch it until the other side has ended.
  let value: Value
  init(_ value: Value) { self.value = value }
}
