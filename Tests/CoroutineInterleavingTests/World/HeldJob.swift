internal import CCoroutine
import Synchronization

/// A job and its scheduler, which drains, for the models of what may hold the job; the job runs at most one piece after
/// its wait.
final class HeldJob {
  let run: Explorer
  let home = Scheduler()
  /// Another worker, which drains as well.
  let away = Scheduler()
  let job: AnyJob
  private let published = Gate()
  /// What the job does on its stack, and others with its frames.
  private let frames = Atomic<Int>(0)
  private var epoch = WaitEpoch(word: 0)
  private var resumes = 0

  init(_ run: Explorer) {
    self.run = run
    job = AnyJob(on: home)
    job.look = { [unowned self] in useFrames("looked at") }
    job.firstPiece = { [unowned self] in beginWait() }
    addDrain(home, "home")
  }

  /// Requires at the end that the job was resumed once.
  func check() {
    run.atEnd { [self] in
      run.require(resumes == 1, "the job was resumed \(resumes) times")
      job.record.pointee.context.map(StackRunner.free)
    }
  }

  private func beginWait() {
    epoch = job.record.beginWait(.callback)
    published.open()
  }

  /// The job is parked already, instead of being started.
  ///
  /// A dropped job has settled, and waits as it releases its captures. It does so in a shield, because its cancellation
  /// would end each other wait.
  func park(isDropped: Bool = false) {
    job.completion.isSettled = isDropped
    let state = isDropped ? JobFlags.cancelled | JobFlags.shielded : JobFlags.begun
    _ = job.record.pointee.flags.bitwiseOr(state, ordering: .acquiringAndReleasing)
    if case .success(let stack) = StackRunner.make(for: job.record) { job.record.pointee.context = stack }
    beginWait()
    job.nameContext()
    job.switchedOut.store(true, ordering: .releasing)
  }

  func addDrain(_ scheduler: Scheduler, _ name: String) {
    run.thread(name) { [unowned self] in
      scheduler.host { drain(scheduler) }
    }
  }

  private func drain(_ scheduler: Scheduler) {
    while true {
      scheduler.inbox.takeAll(as: nil) { scheduler.handle($0) }
      while let job = scheduler.readyQueue.popFirst() {
        if !job.hold.deferWake() { resume(job) }
      }
      if scheduler.inbox.goIdle() { return }
    }
  }

  private func resume(_ job: JobRef) {
    let stack = job.pointee.context.unsafelyUnwrapped
    run.require(cco_is_parked(&stack.pointee.parked), "the job was resumed before it was switched out")
    self.job.switchedOut.store(false, ordering: .relaxed)
    resumes += 1
    useFrames("run")
    _ = job.endWait()
  }

  /// Takes two steps, so that somebody else may come in between, who must not.
  private func useFrames(_ verb: String) {
    let users = frames.wrappingAdd(1, ordering: .relaxed).newValue
    run.require(users == 1, "the job's frames were \(verb) while others used them")
    frames.wrappingSubtract(1, ordering: .relaxed)
  }

  // MARK: What other threads do

  func wake() {
    published.pass()
    if job.record.claim(epoch, WakeReason.delivered) { Carrier.makeReady(job.record) }
  }

  /// As a waker on another worker, which takes the job along if it may.
  func wakeAway() {
    published.pass()
    guard job.record.claim(epoch, WakeReason.delivered) else { return }
    guard job.record.hold.mayMove else { return home.push(.job(job.record)) }
    job.record.pointee.scheduler.store(.passUnretained(away), ordering: .releasing)
    away.push(.job(job.record))
  }

  /// Asks the job to end, by a flag of its record.
  ///
  /// A job that was cancelled loses a value that comes later. A job whose deadline has passed does not.
  func interrupt(_ flag: UInt32) {
    published.pass()
    job.record.pointee.flags.bitwiseOr(flag, ordering: .acquiringAndReleasing)
    job.interrupt()
  }

  /// A request to end the job, whose interrupt a rescuer has just taken out of the inbox.
  func addRescuer(_ name: String) {
    run.thread(name) { [unowned self] in
      job.record.pointee.flags.bitwiseOr(JobFlags.signalled, ordering: .acquiringAndReleasing)
      home.inspectInPlace(job.record)
    }
  }
}
