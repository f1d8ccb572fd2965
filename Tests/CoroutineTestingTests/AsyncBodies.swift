import Dispatch
import Foundation
import Testing

// Async bodies that leave their world, and unusual ones (AsyncWorldTests).

// MARK: - Ways out

/// A way out of the world.
struct Leaving: Sendable, CustomTestStringConvertible {
  let testDescription: String
  /// What the error must name.
  let name: String
  let body: @Sendable () async throws -> Void

  static let all: [Leaving] = [
    Leaving(testDescription: "DispatchQueue.async", name: "dispatch_async") {
      await withCheckedContinuation { continuation in DispatchQueue.global().async { continuation.resume() } }
    },
    Leaving(testDescription: "a barrier of a DispatchQueue", name: "dispatch_barrier_async") {
      await withCheckedContinuation { continuation in
        DispatchQueue.global().async(flags: .barrier) { continuation.resume() }
      }
    },
    Leaving(testDescription: "DispatchQueue.asyncAfter", name: "dispatch_after") {
      await withCheckedContinuation { continuation in
        DispatchQueue.global().asyncAfter(deadline: .now() + 0.001) { continuation.resume() }
      }
    },
    Leaving(testDescription: "a notice of a DispatchWorkItem", name: "dispatch_block_notify") {
      await withCheckedContinuation { continuation in
        let item = DispatchWorkItem {}
        item.notify(queue: .global()) { continuation.resume() }
        item.perform()
      }
    },
    Leaving(testDescription: "DispatchIO", name: "dispatch_read") {
      let zeros = open("/dev/zero", O_RDONLY)
      await withCheckedContinuation { continuation in
        DispatchIO.read(fromFileDescriptor: zeros, maxLength: 1, runningHandlerOn: .global()) { _, _ in
          continuation.resume()
        }
      }
      close(zeros)
    },
    Leaving(testDescription: "Thread", name: "pthread_create") {
      await withCheckedContinuation { continuation in Thread.detachNewThread { continuation.resume() } }
    },
    Leaving(testDescription: "an actor with an executor of the program's", name: "QueueExecutor") {
      await OnQueue().touch()
    },
    Leaving(testDescription: "a preference for a task executor of the program's", name: "dispatch_async") {
      await withTaskExecutorPreference(QueueExecutor.shared) { await elsewhere() }
    },
  ]
}

@concurrent private func elsewhere() async {}

private final class QueueExecutor: SerialExecutor, TaskExecutor {
  static let shared = QueueExecutor()
  private let queue = DispatchQueue(label: "own executor")
  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
  }
}

private actor OnQueue {
  nonisolated var unownedExecutor: UnownedSerialExecutor { QueueExecutor.shared.asUnownedSerialExecutor() }
  func touch() {}
}

// MARK: - Unusual bodies

struct BadBody: Sendable, CustomTestStringConvertible {
  let testDescription: String
  let body: @Sendable () async throws -> Void

  static let all: [BadBody] = [
    BadBody(testDescription: "nothing") {},
    BadBody(testDescription: "very many Tasks") {
      await withTaskGroup { group in for _ in 0..<20_000 { group.addTask {} } }
    },
    BadBody(testDescription: "a very long sleep") { try await Task.sleep(for: .seconds(Int64.max / 2)) },
    BadBody(testDescription: "a sleep in a cancellation handler") {
      let waiting = Task {
        await withTaskCancellationHandler {
          try? await Task.sleep(for: .seconds(10))
        } onCancel: {
          Task { try await Task.sleep(for: .seconds(1)) }
        }
      }
      await Task.yield()
      waiting.cancel()
      await waiting.value
    },
    BadBody(testDescription: "deep recursion of Tasks") { await dig(200) },
    BadBody(testDescription: "a Task that cancels itself and goes on") {
      let task = Task {
        withUnsafeCurrentTask { $0?.cancel() }
        for _ in 0..<10 { try? await Task.sleep(for: .seconds(1)) }
      }
      await task.value
    },
  ]
}

@Sendable private func dig(_ depth: Int) async {
  if depth > 0 { await Task { await dig(depth - 1) }.value }
}
