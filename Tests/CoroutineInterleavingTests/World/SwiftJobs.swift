// What the shipped WorkerPool.swift names of Swift Concurrency, and of the watchdog. A type of the module hides
// an imported one.

/// A job whose code is the model's closure.
public struct ExecutorJob {
  let job: SwiftJobRef

  /// Makes a job, which is freed when it has run.
  init(_ body: @escaping () -> Void) {
    let memory = UnsafeMutableRawPointer.allocate(byteCount: Self.offset + 8, alignment: 16)
    memory.initializeMemory(as: UInt.self, repeating: 0, count: Self.offset / 8)
    let body = Unmanaged.passRetained(Body(run: body)).toOpaque()
    memory.storeBytes(of: body, toByteOffset: Self.offset, as: UnsafeMutableRawPointer.self)
    job = memory.assumingMemoryBound(to: SwiftJobHeader.self)
  }

  /// The closure lies behind the words that the library uses.
  fileprivate static let offset = MemoryLayout<SwiftJobHeader>.stride

  fileprivate final class Body {
    let run: () -> Void
    init(run: @escaping () -> Void) { self.run = run }
  }
}

struct UnownedJob {
  fileprivate let job: SwiftJobRef

  init(_ job: consuming ExecutorJob) { self.job = job.job }
  init(_ job: SwiftJobRef) { self.job = job }

  func runSynchronously(on executor: UnownedTaskExecutor) { runWithoutExecutor() }

  func runWithoutExecutor() {
    let memory = UnsafeMutableRawPointer(job)
    let body = memory.load(fromByteOffset: ExecutorJob.offset, as: UnsafeMutableRawPointer.self)
    Unmanaged<ExecutorJob.Body>.fromOpaque(body).takeRetainedValue().run()
    memory.deallocate()
  }
}

extension SwiftJobRef {
  init(_ job: UnownedJob) { self = job.job }
}

/// What runs jobs: the pool.
public protocol TaskExecutor: AnyObject, Sendable {
  func enqueue(_ job: consuming ExecutorJob)
}

extension TaskExecutor {
  func asUnownedTaskExecutor() -> UnownedTaskExecutor { UnownedTaskExecutor() }
}

struct UnownedTaskExecutor {}

extension WorkerPool {
  func spareWorker() -> Scheduler? { nil }
}
