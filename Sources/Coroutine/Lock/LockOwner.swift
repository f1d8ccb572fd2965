public import Synchronization

// The owner of a lock: a coroutine, a thread outside any coroutine, or the body of a generator. Each is a number that
// no other owner ever has (Job/Flow.swift), so a lock cannot be taken for one's own because an address was used again.
//
// A body owns what it has locked, whichever coroutine or thread makes its steps (Generator/Generator+Owner.swift). To
// the contexts that wait below it, and to its last consumer, it counts as the same owner: waiting for each other would
// never end, and one of them may unlock what another has locked, as a function may that the owner calls.
//
// Fast path. A coroutine that has never stepped a generator runs in no body, and its own number is one load. After its
// first step the number has a flag (OwnerNumber.mayStep), which no lock ever stores: so one comparison with the word of
// a lock says "mine" or "search".

@usableFromInline
enum LockOwner {
  @inlinable static var none: UInt { 0 }

  /// The number under which a running job takes a lock.
  @inlinable @inline(__always)
  static func taking(_ job: JobRef) -> UInt {
    let owner = job.pointee.owner.load(ordering: .relaxed)
    return owner & OwnerNumber.mayStep == 0 ? owner : job.lookedUpOwner()
  }

  /// The number under which the calling code takes a lock.
  @inline(__always)
  static func taking() -> UInt {
    if let job = Carrier.current?.pointee.job { return taking(job) }
    let owner = OwnerNumber.ofThread
    return owner & OwnerNumber.mayStep == 0 ? owner : GeneratorRecord.takingOwner()
  }

  /// Whether `owner` is the caller, or counts as the same owner.
  @inlinable @inline(__always)
  static func isCaller(_ owner: UInt) -> Bool {
    guard let job = Carrier.current?.pointee.job else { return isThread(owner) }
    return job.pointee.owner.load(ordering: .relaxed) == owner || job.isLookedUpOwner(owner)
  }

  @usableFromInline @inline(never)
  static func isThread(_ owner: UInt) -> Bool {
    if owner == none { return false }
    let own = OwnerNumber.ofThread
    return own == owner || GeneratorRecord.isOfChain(owner)
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The number of the job, or of the body that it steps and in which the caller runs.
  @usableFromInline @inline(never)
  func lookedUpOwner() -> UInt { isOnOwnStack ? ownerNumber : GeneratorRecord.takingOwner() }

  /// Whether `owner` is the job, or counts as the same owner for the caller, which the job runs.
  @usableFromInline @inline(never)
  func isLookedUpOwner(_ owner: UInt) -> Bool {
    if owner == LockOwner.none { return false }
    // The locks rely on it that their owner has used them before. A body's lock may be unlocked by a coroutine that has
    // not: it makes the step.
    Host.touchesEverything()
    let own = pointee.owner.load(ordering: .relaxed)
    // On a job's own stack nothing waits below the caller. Then what is left are the parked bodies that it has stepped.
    if own & OwnerNumber.mayStep == 0 || isOnOwnStack {
      if own & ~OwnerNumber.mayStep == owner { return true }
      if !OwnerNumber.isOfBody(owner) { return false }
    }
    return GeneratorRecord.isOfChain(owner)
  }
}
