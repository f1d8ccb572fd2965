#if ServiceLifecycle
import Coroutine
import CoroutineServiceLifecycle
import Logging
import ServiceLifecycle
import ServiceLifecycleTestKit
import Testing

@Suite("Coroutines as services", .timeLimit(.minutes(10)))
struct ServiceTests {
  private struct Oops: Error {}

  @Test(arguments: [.seconds(600), .seconds(Int64.max), Duration(attoseconds: .max)])
  func `a graceful shutdown tells the body to finish, and the service waits for it`(_ drain: Duration) async throws {
    let isServing = Promise<Void>()
    let seen = Promise<[Bool]>()
    let service = CoroutineService("server", drain: drain) {
      isServing.fulfill(())
      try co_await(co_stopping)
      // The body takes its time, and nothing cancels it.
      try co_delay(.milliseconds(20))
      seen.fulfill([co_isStopping, co_isCancelled])
    }
    try await testGracefulShutdown { trigger in
      try await withThrowingTaskGroup(of: Void.self) { group in
        group.addTask { try await service.run() }
        try await isServing.value
        trigger.triggerGracefulShutdown()
        try await group.waitForAll()
      }
    }
    #expect(try seen.result?.get() == [true, false])
  }

  @Test(arguments: [.milliseconds(10), .zero, .seconds(-1), Duration(attoseconds: .min)])
  func `a body that lasts longer than the drain is cancelled, which is no error`(_ drain: Duration) async throws {
    let isServing = Promise<Void>()
    let hasCleaned = Promise<Void>()
    let service = CoroutineService(drain: drain) {
      defer {
        try? co_shield { try co_delay(.milliseconds(20)) }
        hasCleaned.fulfill(())
      }
      isServing.fulfill(())
      try co_await(Promise<Void>())
    }
    try await testGracefulShutdown { trigger in
      try await withThrowingTaskGroup(of: Void.self) { group in
        group.addTask { try await service.run() }
        try await isServing.value
        trigger.triggerGracefulShutdown()
        try await group.waitForAll()
      }
    }
    #expect(hasCleaned.isSettled)
  }

  @Test func `cancelling the task cancels the body, and waits for its cleanup`() async throws {
    let isServing = Promise<Void>()
    let hasCleaned = Promise<Void>()
    let service = CoroutineService {
      defer {
        try? co_shield { try co_delay(.milliseconds(20)) }
        hasCleaned.fulfill(())
      }
      isServing.fulfill(())
      try co_await(Promise<Void>())
    }
    let task = Task { try await service.run() }
    try await isServing.value
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
    #expect(hasCleaned.isSettled)
  }

  @Test func `the error of the body is the service's, and its end ends the service`() async throws {
    await #expect(throws: Oops.self) { try await CoroutineService { throw Oops() }.run() }
    let runs = Promise<Void>()
    try await CoroutineService { runs.fulfill(()) }.run()
    #expect(runs.isSettled)
  }

  @Test func `a group runs coroutines among other services, and a shutdown before the start ends them too`()
    async throws
  {
    let isServing = Promise<Void>()
    let first = CoroutineService("first") {
      isServing.fulfill(())
      try co_await(co_stopping)
    }
    let second = CoroutineService("second") { try co_await(co_stopping) }
    let group = ServiceGroup(
      services: [first, second],
      logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
    )
    let task = Task { try await group.run() }
    try await isServing.value
    await group.triggerGracefulShutdown()
    try await task.value

    try await testGracefulShutdown { trigger in
      trigger.triggerGracefulShutdown()
      try await second.run()
    }
  }
}
#endif
