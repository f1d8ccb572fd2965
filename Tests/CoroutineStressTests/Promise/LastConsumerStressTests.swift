import Coroutine
import Dispatch
import Testing

@Suite("Stress: the last consumer that is cancelled cancels the work", .timeLimit(.minutes(10)))
struct LastConsumerStressTests {
  /// Something that waits for a promise.
  private enum Consumer: Sendable {
    case coroutine(Job<Int>)
    case task(Task<Int, any Error>)
    case link(Promise<Int>)

    init(_ kind: Int, of promise: Promise<Int>, on queue: DispatchQueue) {
      switch kind {
      case 0: self = .coroutine(co_launch(on: queue) { try co_await(promise) })
      case 1: self = .task(Task { try await promise.value })
      case 2: self = .coroutine(co_launch { try co_all([promise, .value(1)])[0] })
      default: self = .link(promise.then { $0 })
      }
    }

    func cancel() {
      switch self {
      case .coroutine(let job): job.cancel()
      case .task(let task): task.cancel()
      case .link(let link): link.cancel()
      }
    }

    /// Whether it got the value.
    func hasValue() async -> Bool {
      do {
        switch self {
        case .coroutine(let job): return try await job.value == 7
        case .task(let task): return try await task.value == 7
        case .link(let link): return try await link.value == 7
        }
      } catch { return false }
    }
  }

  private static let consumers = 6

  @Test func `six consumers are cancelled on four threads while others join and the work ends`() async throws {
    let stress = Stress()
    let queue = queues(1)[0]
    for round in 0..<stress.rounds(800) {
      var random = stress.random(round)
      let cancellations = Census()
      let (promise, resumer) = Promise<Int>.pending(onCancel: { cancellations.change() })
      // A link is a consumer at once; the others become consumers at any time, or find the promise settled.
      var all = [Consumer(3, of: promise, on: queue)]
      for _ in 1..<Self.consumers { all.append(Consumer(.random(in: 0..<4, using: &random), of: promise, on: queue)) }
      let keeper = round % 3 == 0 ? promise.then { $0 } : nil
      let settler = round % 3 == 1 ? Int.random(in: 0..<4, using: &random) : nil
      let order = all.shuffled(using: &random)
      let value = Held(resumer)
      let late = Promise<Consumer>()
      try await onThreads(4) { thread in
        if settler == thread { value.resume() }
        for index in stride(from: thread, to: order.count, by: 4) { order[index].cancel() }
        if thread == 3 {
          // May begin to wait before it is cancelled, and so be the last one to leave.
          let consumer = Consumer(0, of: promise, on: queue)
          consumer.cancel()
          late.fulfill(consumer)
        }
      }
      for consumer in all { _ = await consumer.hasValue() }
      _ = await (try late.value).hasValue()
      let place = "round \(round), \(stress.replay)"
      if let keeper {
        #expect(cancellations.now == 0, "\(place)")
        value.resume()
        #expect(await Consumer.link(keeper).hasValue(), "\(place)")
      } else if settler == nil {
        #expect(promise.isRejected && cancellations.now == 1, "\(place)")
      } else {
        #expect(promise.isSettled && cancellations.now == (promise.isFulfilled ? 0 : 1), "\(place)")
      }
    }
  }

  @Test func `Tasks that are cancelled at once cancel their job exactly if no other consumer is left`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(500) {
      let gate = Promise<Int>()
      let job = co_launch { try co_await(gate) }
      let keeps = round % 2 == 0
      let queue = queues(1)[0]
      let keeper = keeps ? co_launch(on: queue) { try job.join() } : nil
      if keeps { try await onQueue(queue) }
      let tasks = (0..<4).map { _ in Task { try await job.value } }
      try await onThreads(4) { tasks[$0].cancel() }
      for task in tasks { _ = try? await task.value }
      #expect(job.isCancelled == !keeps, "round \(round), \(stress.replay)")
      gate.fulfill(7)
      if let keeper { #expect(try await keeper.value == 7, "round \(round), \(stress.replay)") }
    }
  }

  /// Waits until a serial queue has run what was queued before.
  private func onQueue(_ queue: DispatchQueue) async throws {
    await withCheckedContinuation { done in queue.async { done.resume() } }
  }

  /// A resumer that is used once and then released, on any thread.
  private final class Held: Sendable {
    private let resumer: Resumer<Int>
    init(_ resumer: Resumer<Int>) { self.resumer = resumer }
    func resume() { resumer.resume(7) }
  }
}
