import Testing

@testable import Coroutine

/// Two meanings of one bit are no error for the compiler.
@Suite("The flags of a job")
struct JobFlagsTests {
  @Test func `share no bit`() {
    let flags: [UInt32] = [
      JobFlags.cancelled, JobFlags.signalled, JobFlags.enqueued, JobFlags.gotFailure,
      JobFlags.foreign, JobFlags.deferredWake, JobFlags.deferredInterrupt, JobFlags.shielded,
      JobFlags.inheritsTaskLocals, JobFlags.keepsThread, JobFlags.begun,
      JobFlags.inspecting,
    ]
    #expect(flags.reduce(0, |) == flags.reduce(0, &+))
    #expect(JobFlags.needsCancellationCheck == JobFlags.cancelled | JobFlags.signalled)
    #expect(JobFlags.needsPreparation == JobFlags.cancelled | JobFlags.inheritsTaskLocals)
    #expect(JobFlags.inspecting & (0 &- JobFlags.inspecting) == JobFlags.oneInspection)
  }
}
