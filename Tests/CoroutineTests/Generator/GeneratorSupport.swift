import Coroutine

/// The result of a step, as a line.
func describe<Element, Return>(_ step: GeneratorStep<Element, Return>) -> String {
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
