internal import CCoroutine
import Synchronization

// The owners of locks among bodies. A lock that a body has locked belongs to the body, whatever makes its next step: to
// the number of its stack's use, which is never used again.
//
// The chain. A body that runs was stepped by a consumer, which waits below it: another body, or at the bottom a job or
// a thread. A body that delegates waits for the inner one. So what any of these holds is not unlocked while the
// innermost body waits, and a lock of theirs is refused to it with `wouldDeadlock`. The chain is found on the stacks:
// the caller's address leads to its context, the context to its record, and to the address of its resumer.
//
// Parked bodies. A consumer that waits for a lock which a parked body holds would have to step that body itself, unless
// another flow of control does. So a body also counts as held by the chain of its last consumer, until another consumer
// steps it. Nothing on the consumer's stack leads to a parked body. Therefore bodies that lock are tracked:
//
//   UNTRACKED --the body takes a lock, or steps a tracked body--> TRACKED, until the body ends
//
// Invariants
//  1. `owner` is the body's number while it is tracked, else 0. `steppers` contains exactly the tracked bodies, each
//     with the owner of its last step. A body that a tracked one has made the last step of need not be tracked; a body
//     that makes the last step of a tracked one is.
//  2. The stepper of a tracked generator equals no consumer's owner, so each of its steps goes through `attach`, which
//     notes who makes it. A body that delegates to a tracked one is tracked, because its steps are the inner one's.
//  3. Each record is changed by the holder of its claim: the bodies of the caller's chain are RUNNING in steps of the
//     caller's own flow of control. The table has a lock of its own, and contains numbers only. So a flow of control
//     that asks for the stepper of a body of others never follows a pointer to it.
//  4. A body leaves the table before its number goes, at its end. A lock that it still holds stays locked, as that of a
//     coroutine that has ended.
//
// Two owners that a chain contains at the same time are the same for ever: each was stepped by the one below. Two that
// the table relates may part, when another consumer makes a step. The answer is that of one moment then, as for every
// wait.
//
// Cost. A step of a body that never locks pays nothing: the comparison that finds a new consumer also finds that a
// generator is tracked. A tracked one pays a call and a lookup for each step, and a lookup for each lock.

extension GeneratorRecord {
  private static let lock = ThreadLock()
  /// The owner of the last step of each tracked body, under the lock.
  nonisolated(unsafe) private static var steppers: [UInt: UInt] = [:]  // Sound because of the lock.

  /// Returns the number under which the calling code takes a lock, and tracks the body in which it runs.
  @inline(never)
  static func takingOwner() -> UInt {
    guard let body = body(of: cco_context_here()) else { return flowOwner }
    if body.pointee.owner == 0 { track(from: body) }
    return body.pointee.owner
  }

  /// Whether the owner is a context of the caller's chain, or a parked body whose last step such a context has made.
  @inline(never)
  static func isOfChain(_ owner: UInt) -> Bool {
    if isOnChain(owner) { return true }
    guard OwnerNumber.isOfBody(owner) else { return false }
    var stepped = owner
    // One that was stepped by others in turn, and steps them in turn, could lead around.
    for _ in 0..<100 {
      guard let stepper = lock.withLock({ steppers[stepped] }) else { return false }
      if isOnChain(stepper) { return true }
      stepped = stepper
    }
    return false
  }

  /// Whether the owner is a context on which the calling code runs, or which waits for it below.
  private static func isOnChain(_ owner: UInt) -> Bool {
    var next = body(of: cco_context_here())
    while let body = next {
      var waiting: GeneratorRef? = body
      while let record = waiting {
        if number(of: record) == owner { return true }
        waiting = record.pointee.delegator
      }
      next = resumer(of: body)
    }
    return owner == flowOwner
  }

  /// The number of the job, or of the thread outside any job, that the calling code belongs to.
  private static var flowOwner: UInt {
    guard let carrier = Carrier.current, let job = carrier.pointee.job ?? carrier.pointee.releaser else {
      return OwnerNumber.ofThread & ~OwnerNumber.mayStep
    }
    return job.ownerNumber
  }

  private static func number(of record: GeneratorRef) -> UInt {
    OwnerNumber.ofBody(record.pointee.context.unsafelyUnwrapped.pointee.serial)
  }

  // MARK: The chain

  /// The body whose stack a context is; nil for the stack of a job or a thread.
  private static func body(of context: UnsafePointer<cco_context>?) -> GeneratorRef? {
    // Only the contexts of generators have an argument.
    context?.pointee.argument?.assumingMemoryBound(to: GeneratorRecord.self)
  }

  /// The body that has resumed a running one, and waits below it.
  private static func resumer(of body: GeneratorRef) -> GeneratorRef? {
    // Its saved stack pointer, and not the address of the saved context, which a sanitizer may have placed elsewhere.
    let caller = body.pointee.context.unsafelyUnwrapped.pointee.caller.unsafelyUnwrapped
    return self.body(of: caller.pointee.stack.flatMap { cco_context_at($0, nil) })
  }

  // MARK: Tracking

  /// Tracks a running body, and those that wait below it.
  private static func track(from innermost: GeneratorRef) {
    var next: GeneratorRef? = innermost
    while let body = next {
      next = resumer(of: body)
      note(body, steppedBy: next.map(number(of:)) ?? flowOwner)
    }
  }

  /// Notes that the calling code makes a step of a tracked generator, or of one that delegates to a tracked one.
  static func noteStep(_ root: GeneratorRef) {
    note(root.pointee.active.unsafelyUnwrapped, steppedBy: takingOwner())
  }

  /// Tracks a body, and the bodies that delegate to it.
  private static func note(_ body: GeneratorRef, steppedBy stepper: UInt) {
    var record = body
    while true {
      if record.pointee.steppedBy != stepper || record.pointee.owner == 0 {
        let number = number(of: record)
        record.pointee.owner = number
        record.pointee.steppedBy = stepper
        lock.withLock { steppers[number] = stepper }
      }
      guard let outer = record.pointee.delegator else { break }
      record = outer
    }
    let known = record.pointee.stepper.load(ordering: .relaxed)
    record.pointee.stepper.store(known | GeneratorStepper.isTracked, ordering: .relaxed)
  }

  /// The coroutine or thread whose steps the owner needs to go on: itself, or the last consumer of a body; none if
  /// there is no owner.
  static func flows(of owner: borrowing Atomic<UInt>) -> [UInt] {
    var flow = owner.load(ordering: .relaxed)
    if flow == 0 { return [] }
    lock.withLock {
      for _ in 0..<100 where OwnerNumber.isOfBody(flow) { flow = steppers[flow] ?? flow }
    }
    return [flow]
  }

  static func isTracked(_ owner: UInt) -> Bool { lock.withLock { steppers[owner] != nil } }

  /// Forgets a body at its end.
  @inline(never)
  static func endTracking(_ record: GeneratorRef) {
    let number = record.pointee.owner
    record.pointee.owner = 0
    lock.withLock { _ = steppers.removeValue(forKey: number) }
  }
}
