import Dispatch
import Testing

@testable import Coroutine

private let tag = CoroutineLocal(default: "none")
private enum Request {
  @TaskLocal static var user = "none"
}

private func bound<R>(_ value: String, _ body: () throws -> R) rethrows -> R {
  try tag.withValue(value) { try Request.$user.withValue(value) { try body() } }
}

/// A handler sees the bindings of the code that has attached it: not those of the code that settles, nor the thread's.
@Suite("Promise: what a handler sees", .timeLimit(.minutes(10)))
struct HandlerBindingTests {
  enum Route: CaseIterable {
    case then, thenPromise, thenResult, tap, ensure, ensureThen, get, recover, `catch`, finally, guarantee
    case finallyOfJob, running

    /// Attaches a handler that calls `note`, and returns what makes it run.
    func attach(on queue: DispatchQueue?, _ note: @escaping @Sendable () -> Void) -> () -> Void {
      let promise = Promise<Int>()
      var settle: () -> Void = { promise.fulfill(1) }
      switch self {
      case .then: _ = promise.then(on: queue) { _ in note() }
      case .thenPromise:
        _ = promise.then(on: queue) { _ -> Promise<Int> in
          note()
          return .value(1)
        }
      case .thenResult: _ = promise.thenResult(on: queue) { _ in note() }
      case .tap: _ = promise.tap(on: queue) { _ in note() }
      case .ensure: _ = promise.ensure(on: queue) { note() }
      case .ensureThen:
        _ = promise.ensureThen(on: queue) {
          note()
          return .value(())
        }
      case .get: _ = promise.get(on: queue) { _ in note() }
      case .recover:
        promise.recover(on: queue) { _ -> Int in
          note()
          return 2
        }
        .ignore()
        settle = { promise.reject(Oops("recover")) }
      case .catch:
        promise.catch(on: queue) { _ in note() }
        settle = { promise.reject(Oops("catch")) }
      case .finally: promise.catch { _ in }.finally(on: queue) { note() }
      case .guarantee: _ = Guarantee(promise).then(on: queue) { _ in note() }
      case .finallyOfJob:
        let job = co_launch(start: .lazy) {}
        job.finally(on: queue) { note() }
        settle = { job.start() }
      case .running:
        _ = Promise<Void>.running(on: queue ?? .global()) { note() }
        settle = {}
      }
      return settle
    }
  }

  private func seen(_ route: Route, on queue: DispatchQueue?, binds: Bool) -> Promise<String> {
    let seen = Promise<String>()
    let attach = { route.attach(on: queue) { seen.fulfill("\(tag.value) \(Request.user)") } }
    let settle = binds ? bound("attached", attach) : attach()
    bound("settled") { settle() }
    return seen
  }

  @Test(arguments: Route.allCases)
  func `is what was bound where it was attached`(_ route: Route) async throws {
    let queue = taggedQueue("handlers")
    for queue in [nil, queue] {
      #expect(try await seen(route, on: queue, binds: true).value == "attached attached")
      #expect(try await seen(route, on: queue, binds: false).value == "none none")
      // In a coroutine of the worker pool, and in one of a queue.
      for home in [nil, taggedQueue("home")] {
        let both = try await co_launch(on: home) {
          [true, false].map { seen(route, on: queue, binds: $0) }
        }
        .value
        #expect(try await both[0].value == "attached attached")
        #expect(try await both[1].value == "none none")
      }
    }
  }

  @Test(.inWorlds) func `is the same in a world, whose thread has bindings of its own`() throws {
    for route in Route.allCases where route != .running {
      let text = try bound("outside") { try co_await(seen(route, on: nil, binds: true)) }
      #expect(text == "attached attached", "\(route)")
    }
  }

  @Test func `goes on to what a handler attaches and launches`() async throws {
    let seen = Promise<[String]>()
    let promise = Promise<Int>()
    bound("attached") {
      _ = promise.then { _ in
        let inner = Promise<Int>()
        let job = co_launch { tag.value }
        _ = inner.then { _ in
          seen.follow(
            Promise<[String]> { done in
              let here = "\(tag.value) \(Request.user)"
              job.finally { done.resume([here, "\(tag.value)"]) }
            }
          )
        }
        bound("inner") { _ = inner.fulfill(1) }
      }
    }
    promise.fulfill(1)
    #expect(try await seen.value == ["attached attached", "attached"])
  }

  @Test func `is released when the handler has run, and when it never will`() async throws {
    final class Token: Sendable {
      let gone: Flag
      init(_ gone: Flag) { self.gone = gone }
      deinit { gone.raise() }
    }
    let token = CoroutineLocal<Token?>(default: nil)
    try await onSerialQueue {
      for isRun in [true, false] {
        let (gone, promise) = (Flag(), Promise<Int>())
        let link = token.withValue(Token(gone)) { promise.then { $0 + 1 } }
        #expect(!gone.isRaised)
        if isRun { promise.fulfill(1) } else { promise.reject(Oops("never")) }
        _ = try? co_await(link)
        for _ in 0..<3 { try co_yield() }
        #expect(gone.isRaised)
        withExtendedLifetime(link) {}
      }
    }
  }
}
