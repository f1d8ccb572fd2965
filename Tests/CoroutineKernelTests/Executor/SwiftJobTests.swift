import Dispatch
import Testing
@_spi(ExperimentalCustomExecutors) import _Concurrency

@testable import Coroutine

/// Canaries of docs/unsafe.md.
@Suite("Swift's jobs", .timeLimit(.minutes(10)))
struct SwiftJobTests {
  @Test func `the words that Swift leaves to executors are where SwiftJobHeader says`() async {
    let seen = await withCheckedContinuation { continuation in
      let executor = LookingExecutor { continuation.resume(returning: $0) }
      Task(executorPreference: executor) {}
    }
    #expect(seen == [0x10, 0x18, 16])
    #expect(MemoryLayout<SwiftJobHeader>.offset(of: \.link) == 0x10)
    #expect(MemoryLayout<SwiftJobHeader>.offset(of: \.executor) == 0x18)
    #expect(MemoryLayout<UnownedJob>.size == MemoryLayout<UInt>.size)
  }

  @Test func `an executor is two words, the object and what is the same for all of its type`() {
    let (first, second) = (SerialExecutorStub(), SerialExecutorStub())
    let words = [first, second].map { unsafeBitCast($0.asUnownedSerialExecutor(), to: (UInt, UInt).self) }
    #expect(words[0].0 == UInt(bitPattern: Unmanaged.passUnretained(first).toOpaque()))
    #expect(words[0].1 == words[1].1)
    let own = CoroutineExecutor(DispatchQueue(label: "canary"))
    let ours = unsafeBitCast(own.asUnownedSerialExecutor(), to: (UInt, UInt).self)
    #expect(ours.1 != words[0].1)
  }
}

/// Tells where a job's private words lie, then runs it.
private final class LookingExecutor: TaskExecutor {
  private let tell: @Sendable ([Int]) -> Void
  init(_ tell: @escaping @Sendable ([Int]) -> Void) { self.tell = tell }

  func enqueue(_ job: consuming ExecutorJob) {
    let words = job.withUnsafeExecutorPrivateData { (UInt(bitPattern: $0.baseAddress), $0.count) }
    let job = UnownedJob(job)
    let address = unsafeBitCast(job, to: UInt.self)
    job.runSynchronously(on: asUnownedTaskExecutor())
    tell([Int(words.0 - address), Int(words.0 - address) + 8, words.1])
  }
}

private final class SerialExecutorStub: SerialExecutor {
  func enqueue(_ job: consuming ExecutorJob) { fatalError("nobody enqueues") }
}
