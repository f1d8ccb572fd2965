import Coroutine

/// The failure that tests throw.
///
/// Its label distinguishes failures.
struct Oops: Error, Equatable {
  var label: String

  init(_ label: String = "") {
    self.label = label
  }
}

/// The outcome of `body`, as a text that tests compare: the returned value, or the name of the error.
func outcome<Output>(_ body: () throws -> Output) -> String {
  do {
    return "\(try body())"
  } catch {
    return name(of: error)
  }
}

/// The same for asynchronous code.
func asyncOutcome<Output: Sendable>(_ body: () async throws -> Output) async -> String {
  do {
    return "\(try await body())"
  } catch {
    return name(of: error)
  }
}

/// The same for a result.
func outcome<Output>(_ result: Result<Output, any Error>) -> String {
  outcome { try result.get() }
}

/// An error's name: `Oops(label)`, `CancellationError`, `notInCoroutine`, `AggregateError[…]`, else its type.
func name(of error: any Error) -> String {
  switch error {
  case let error as Oops: "Oops(\(error.label))"
  case let error as UnhandledErrors.Failure: "Failure(\(error.label))"
  case let error as AggregateError: "AggregateError[\(error.errors.map { name(of: $0) }.joined(separator: ", "))]"
  case let error as CoroutineError: name(of: error)
  default: "\(type(of: error))"
  }
}

private func name(of error: CoroutineError) -> String {
  switch error {
  case .notInCoroutine: "notInCoroutine"
  case .insideTask: "insideTask"
  case .abandoned: "abandoned"
  case .invalidCallback: "invalidCallback"
  case .wouldDeadlock: "wouldDeadlock"
  case .cycle: "cycle"
  case .alreadyRunning: "alreadyRunning"
  case .yieldInsideScope: "yieldInsideScope"
  case .badDescriptor: "badDescriptor"
  case .cannotWatch: "cannotWatch(\(error.number))"
  case .stackTooLarge: "stackTooLarge"
  case .outOfStacks: "outOfStacks"
  case .invalidCount: "invalidCount"
  case .cannotPin: "cannotPin"
  default: "an unknown CoroutineError"
  }
}
