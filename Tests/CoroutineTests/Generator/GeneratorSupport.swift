import Coroutine

/// The result of a step, as a line.
func describe<Element, Return>(_ step: Step<Element, Return>) -> String {
  switch step {
  case .yielded(let element): "value \(element), done false"
  case .returned(let result): "value \(result), done true"
  }
}

/// 0, 1, 2 … without an end.
func naturals(_ trace: Trace? = nil) -> Generator<Int, Never, Void> {
  co_sequence { yield in
    var number = 0
    while true {
      trace?("\(number)")
      try yield(number)
      number += 1
    }
  }
}

/// Carries a generator to another thread, or into a job, between two steps.
struct Handed<Value>: @unchecked Sendable {
  // Sound because a test hands it over and does not touch it until the other side has ended.
  let value: Value
  init(_ value: Value) { self.value = value }
}
