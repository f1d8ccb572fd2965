import Coroutine
import Testing

/// The later failures of a scope.
@Suite("co_scope: later failures", .timeLimit(.minutes(10)))
struct LateFailureTests {
  /// Every failure that a wait for another coroutine can throw.
  enum Way: CaseIterable, Sendable {
    case join, await, all, allSettled, race, select

    func get(_ job: Job<Int>) throws {
      switch self {
      case .join: try job.join()
      case .await: _ = try co_await(job)
      case .all: _ = try co_all([job])
      case .allSettled: _ = try co_allSettled([job])[0].get()
      case .race: _ = try co_race([job])
      case .select: _ = try co_select { job.onAwait { try $0.get() } }
      }
    }
  }

  // On a serial queue children start in the order of their launches. A child that is cancelled before it has started
  // never starts, so the child that fails first is launched last, or lets the others start.

  /// Lets the others start, and fails.
  private static func failAfterOthers(_ failure: any Error) throws -> Int {
    try co_yield()
    throw failure
  }

  /// Waits until it is cancelled and then fails.
  private static func failWhenCancelled(_ failure: any Error) throws {
    do { try waitForCancellation() } catch { throw failure }
  }

  @Test func `of four equal failures all but the first are reported, with the child's name and launch site`()
    async throws
  {
    let errors = UnhandledErrors()
    let (thrown, reported) = try await onSerialQueue {
      let end = outcome {
        try co_scope { scope in
          for number in 1...3 {
            scope.launch(name: "late \(number)") {
              do { try waitForCancellation() } catch { throw errors.failure("equal") }
            }
          }
          scope.launch(name: "first") { throw errors.failure("equal") }
        }
      }
      // Not later than the scope's end.
      return (end, errors.labels)
    }
    #expect(thrown == "Failure(equal)")
    #expect(reported == ["equal", "equal", "equal"])
    let jobs = try await errors.jobs(count: 3)
    #expect(jobs.map { String($0.prefix { $0 != "(" }) }.sorted() == ["\"late 1\" ", "\"late 2\" ", "\"late 3\" "])
    #expect(jobs.allSatisfy { $0.contains("LateFailureTests.swift:") })
    #expect(try await errors.settledLabels() == ["equal", "equal", "equal"])
  }

  @Test func `children that throw the same error object count as separate failures`() async throws {
    let errors = UnhandledErrors()
    let failure: any Error = errors.failure("shared")
    let reported = try await onSerialQueue {
      let end = outcome {
        try co_scope { scope in
          for _ in 1...2 { scope.launch { try Self.failWhenCancelled(failure) } }
          scope.launch { throw failure }
        }
      }
      return [end] + errors.labels
    }
    #expect(reported == ["Failure(shared)", "shared", "shared"])
  }

  @Test(arguments: Way.allCases)
  func `a sibling that rethrows the error of a failed child is not a second failure`(_ way: Way)
    async throws
  {
    let errors = UnhandledErrors()
    let seen = try await onSerialQueue {
      outcome {
        try co_scope { scope in
          let failing = scope.launch { try Self.failAfterOthers(errors.failure("travels")) }
          scope.launch { try co_shield { try way.get(failing) } }
        }
      }
    }
    #expect(seen == "Failure(travels)")
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test(arguments: Way.allCases)
  func `a body that rethrows the error of a failed child is not a second failure`(_ way: Way) async throws {
    let errors = UnhandledErrors()
    let seen = try await onSerialQueue {
      outcome {
        try co_scope { scope in
          let failing = scope.launch { try Self.failAfterOthers(errors.failure("travels")) }
          try co_shield { try way.get(failing) }
        }
      }
    }
    #expect(seen == "Failure(travels)")
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `a sibling that fails with its own equal error is reported, even if it has joined the failed child`()
    async throws
  {
    let errors = UnhandledErrors()
    let seen = try await onSerialQueue {
      let end = outcome {
        try co_scope { scope in
          let failing = scope.launch { try Self.failAfterOthers(errors.failure("equal")) }
          scope.launch(name: "its own") {
            do { try co_shield { _ = try failing.join() } } catch { throw errors.failure("equal") }
          }
        }
      }
      return [end] + errors.labels
    }
    #expect(seen == ["Failure(equal)", "equal"])
    #expect(try await errors.jobs(count: 1)[0].hasPrefix("\"its own\" "))
  }

  @Test func `a later failure that the body has joined counts as observed`() async throws {
    let errors = UnhandledErrors()
    let seen = try await onSerialQueue {
      let trace = Trace()
      let end = outcome {
        try co_scope { scope in
          let late = scope.launch { try Self.failWhenCancelled(errors.failure("late")) }
          scope.launch { throw errors.failure("first") }
          co_shield { trace(outcome { try late.join() }) }
        }
      }
      return trace.all + [end]
    }
    #expect(seen == ["Failure(late)", "Failure(first)"])
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `a later failure that the body rethrows is reported once, as the body's`() async throws {
    let errors = UnhandledErrors()
    let seen = try await onSerialQueue {
      try co_launch(name: "the owner") {
        let end = outcome {
          try co_scope { scope in
            let late = scope.launch { try Self.failWhenCancelled(errors.failure("late")) }
            scope.launch { throw errors.failure("first") }
            try co_shield { _ = try late.join() }
          }
        }
        return [end] + errors.labels
      }.join()
    }
    #expect(seen == ["Failure(first)", "late"])
    #expect(try await errors.settledLabels() == ["late"])
    #expect(try await errors.jobs(count: 1)[0].hasPrefix("\"the owner\" "))
  }

  @Test func `a body that fails after a child is reported, with the name of its coroutine`() async throws {
    let errors = UnhandledErrors()
    let seen = try await onSerialQueue {
      try co_launch(name: "the owner") {
        outcome {
          try co_scope { scope in
            scope.launch { throw errors.failure("equal") }
            do { try waitForCancellation() } catch { throw errors.failure("equal") }
          }
        }
      }.join()
    }
    #expect(seen == "Failure(equal)")
    #expect(try await errors.settledLabels() == ["equal"])
    #expect(try await errors.jobs(count: 1)[0].hasPrefix("\"the owner\" "))
  }

  @Test func `a child that fails after the body is reported`() async throws {
    let errors = UnhandledErrors()
    let seen = try await onSerialQueue {
      outcome {
        try co_scope { scope in
          scope.launch(name: "late") { try Self.failWhenCancelled(errors.failure("equal")) }
          try co_yield()
          throw errors.failure("equal")
        }
      }
    }
    #expect(seen == "Failure(equal)")
    #expect(try await errors.jobs(count: 1)[0].hasPrefix("\"late\" "))
    #expect(try await errors.settledLabels() == ["equal"])
  }

  @Test func `a body that throws the error that cancelled the scope is not reported`() async throws {
    let errors = UnhandledErrors()
    let seen = try await onSerialQueue {
      outcome {
        try co_scope { scope in
          let first = scope.launch { try Self.failWhenCancelled(errors.failure("first")) }
          try co_yield()
          scope.cancel(errors.failure("reason"))
          // The child's failure is the scope's before the body throws.
          co_shield { _ = outcome { try first.join() } }
          try waitForCancellation()
        }
      }
    }
    #expect(seen == "Failure(first)")
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `a first failure is not reported, even if its job was kept and never joined`() async throws {
    let errors = UnhandledErrors()
    let held = Locked<Job<Void>?>(nil)
    let seen = try await onSerialQueue {
      outcome {
        try co_scope { scope in held.current = scope.launch { throw errors.failure("first") } }
      }
    }
    held.current = nil
    #expect(seen == "Failure(first)")
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `on every core a failure that is passed on is thrown, and not reported`() async throws {
    let errors = UnhandledErrors()
    for _ in 1...100 {
      let thrown = try await onCoroutine {
        let start = Gate()
        return outcome {
          try co_scope { scope in
            let failing = scope.launch { () throws -> Void in
              try co_shield { try start.pass() }
              throw errors.failure("travels")
            }
            for _ in 0..<3 { scope.launch { try co_shield { try failing.join() } } }
            start.open()
            try co_shield { try failing.join() }
          }
        }
      }
      #expect(thrown == "Failure(travels)")
    }
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `on every core each of many equal failures is thrown or reported, once`() async throws {
    let errors = UnhandledErrors()
    for round in 1...50 {
      let (thrown, reported) = try await onCoroutine {
        let (arrived, start) = (WaitGroup(), Gate())
        arrived.add(8)
        let end = outcome {
          try co_scope { scope in
            for _ in 0..<8 {
              scope.launch {
                arrived.done()
                try co_shield { try start.pass() }
                throw errors.failure("equal")
              }
            }
            try arrived.wait()
            start.open()
          }
        }
        return (end, errors.labels.count)
      }
      #expect(thrown == "Failure(equal)")
      #expect(reported == 7 * round)
    }
  }
}
