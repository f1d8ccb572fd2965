#if Demo
import Coroutine
import Foundation
import Testing

@testable import CoroutineDemo

@Suite(.timeLimit(.minutes(10))) struct `A run with callbacks` {
  private struct Late: Error {}

  @Test func `ends once: what comes later changes neither the outcome nor the cleanup`() throws {
    let cleanups = Locked(0)
    let run = Self.makeRun { cleanups.withLock { $0 += 1 } }
    #expect(run.begin(.login))
    run.finish(.success(()))
    run.finish(.failure(Late()))
    run.cancel(Late())
    run.fail(.login, Late())
    try run.wait()
    try run.wait()
    // A second cleanup would have been queued by now; this waits until it has run.
    run.cleanUpQueue.sync {}
    #expect(cleanups.withLock { $0 } == 1)
    #expect(!run.complete(.login))
    #expect(!run.begin(.profile))
  }

  @Test func `runs out of time`() {
    let run = Self.makeRun {}
    run.cancel(after: .milliseconds(1))
    #expect(throws: TimeoutError.self) { try run.wait() }
  }

  @Test func `names the step that failed`() {
    let run = Self.makeRun {}
    #expect(run.begin(.login))
    run.fail(.login, Late())
    #expect {
      try run.wait()
    } throws: { ($0 as? StepFailure)?.step == .login }
  }

  private static func makeRun(_ cleanUp: @escaping @Sendable () -> Void) -> CallbackRun {
    let nowhere = Output(descriptor: FileHandle.nullDevice.fileDescriptor, name: "nowhere", [:])
    return CallbackRun(progress: Progress(on: nowhere), cleanUp: cleanUp)
  }
}
#endif
