import Dispatch
import Testing

@testable import Coroutine

/// A CancellationError is silent only in the coroutine that was cancelled; in any other one it is a failure, which the
/// unhandled-error hook gets if nobody else does.
@Suite("A cancellation of somebody else", .timeLimit(.minutes(10)))
struct ForeignCancellationTests {
  /// The ways in which work ends that nobody waits for, and through which a cancellation of somebody else may come.
  private enum Route: String, CaseIterable {
    case queued, immediate, lazy, onQueue, own, awaited, combined, promise, async, scope, supervised, dropped, actor
    case later
  }

  /// Ends with a CancellationError that is not the caller's.
  private static func joinCancelled() throws {
    let other = co_launch { try waitForCancellation() }
    other.cancel()
    try other.join()
  }

  private static func begin(_ route: Route) throws {
    let name = "by \(route.rawValue)"
    switch route {
    case .queued: co_launch(name: name) { try joinCancelled() }
    case .immediate: co_launch(name: name, start: .immediate) { try joinCancelled() }
    case .lazy: co_launch(name: name, start: .lazy) { try joinCancelled() }.start()
    case .onQueue: co_launch(on: DispatchQueue(label: "foreign"), name: name) { try joinCancelled() }
    case .own: co_launch(name: name) { () throws -> Void in throw CancellationError() }
    case .awaited:
      let other = co_launch { try waitForCancellation() }
      other.cancel()
      co_launch(name: name) { try co_await(other) }
    case .combined:
      let other = co_launch { try waitForCancellation() }
      other.cancel()
      co_launch(name: name) { _ = try co_all([other]) }
    case .promise:
      let promise = Promise<Void>()
      promise.cancel()
      co_launch(name: name) { try co_await(promise) }
    case .async:
      co_launch(name: name) {
        try co_await {
          let task = Task { try await Task.sleep(for: .seconds(1_000)) }
          task.cancel()
          try await task.value
        }
      }
    case .scope: co_launch(name: name) { try co_scope { scope in scope.launch { try joinCancelled() } } }
    case .supervised: try co_scope(failures: .isolated) { scope in scope.launch(name: name) { try joinCancelled() } }
    case .dropped:
      let job = co_launch(name: name) { try joinCancelled() }
      while !job.isFinished { try co_yield() }
    case .actor: _ = co_actor(of: Int.self, name: name) { _ in try joinCancelled() }
    case .later:
      // The other coroutine is cancelled while this one waits for it.
      let other = co_launch { try waitForCancellation() }
      let job = co_launch(name: name) { try other.join() }
      try co_yield()
      other.cancel()
      while !job.isFinished { try co_yield() }
    }
  }

  @Test func `that ends work which nobody waits for is reported, once, by every route`() async {
    // In a separate process, because cancellations have no identity.
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in heard("\(name(of: unhandled.error)) \(unhandled.origin)")
      }
      try await onSerialQueue {
        for route in Route.allCases { try Self.begin(route) }
        for route in Route.allCases {
          let line = "CancellationError \"by \(route.rawValue)\""
          try? co_timeout(.seconds(120)) { while !heard.all.contains(where: { $0.hasPrefix(line) }) { try co_yield() } }
          #expect(heard.all.count { $0.hasPrefix(line) } == 1, "\(route)")
        }
        #expect(heard.all.count == Route.allCases.count, "\(heard.all)")
      }
    }
  }

  @Test func `that ends a generator is reported when it is released, unless a step has thrown it`() async {
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        heard("\(name(of: unhandled.error)) \(unhandled.origin.prefix { !$0.isNumber && $0 != "/" })")
      }
      try await onSerialQueue {
        for isSeen in [true, false] {
          let generator = co_sequence(of: Int.self) { yield in
            try yield(1)
            try Self.joinCancelled()
          }
          for _ in generator {}
          if isSeen { #expect(generator.failure is CancellationError) }
        }
      }
      #expect(heard.all == ["CancellationError a generator made at CoroutineKernelTests"])
      // On a thread there is no consumer that could have been cancelled.
      for _ in co_sequence(of: Int.self, { _ in throw CancellationError() }) {}
      #expect(heard.all.count == 2)
    }
  }

  @Test func `the own one of a coroutine, an actor or a consumer is silent`() async {
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      let last = Gate()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        heard("\(name(of: unhandled.error)) \(unhandled.origin)")
        if unhandled.error is Oops { last.open() }
      }
      try await onSerialQueue {
        // Not begun, parked, with a reason, inside a scope, and while it joins another one that is cancelled too.
        co_launch { try waitForCancellation() }.cancel()
        let (plain, reasoned) = (co_launch { try waitForCancellation() }, co_launch { try waitForCancellation() })
        let scoped = co_launch { try co_scope { scope in _ = scope.launch { try waitForCancellation() } } }
        let joining = co_launch { try plain.join() }
        let generating = co_launch {
          for _ in co_sequence(of: Int.self, { _ in try waitForCancellation() }) {}
          try co_checkCancelled()
        }
        // A deadline of the consumer is its cancellation as well.
        let timed = co_launch {
          _ = try? co_timeout(.milliseconds(1)) {
            for _ in co_sequence(of: Int.self, { _ in try waitForCancellation() }) {}
          }
        }
        let actor = co_actor(of: Int.self) { _ in try waitForCancellation() }
        try co_yield()
        joining.cancel()
        for job in [plain, scoped, generating] { job.cancel() }
        reasoned.cancel(Oops("reason"))
        actor.cancel()
        try timed.join()
        let jobs = [plain, reasoned, scoped, joining, generating]
        while !jobs.allSatisfy(\.isFinished) { try co_yield() }
        try co_scope(failures: .isolated) { scope in
          scope.launch { try waitForCancellation() }
          scope.cancel()
        }
        try co_yield()
      }
      co_launch { () throws -> Void in throw Oops("last") }
      try await onCoroutine { try last.pass() }
      #expect(heard.all.count == 1 && heard.all.first?.hasPrefix("Oops(last)") == true, "\(heard.all)")
    }
  }
}
