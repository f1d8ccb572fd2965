public import Synchronization

// The owner of a lock: a coroutine, or a thread outside any coroutine. Each is a number that no other owner ever has
// (Job/Flow.swift), so a lock cannot be taken for one's own because an address was used again.
//
// What a coroutine locks in the body of a generator that it steps, the coroutine owns. The body must have unlocked it
// when it yields, because the next step may be another coroutine's. So there the lock is counted
// (Generator+Delegation.swift).
//
// Fast path. A coroutine that has never stepped a generator runs in no body. After its first step its number has a flag
// (OwnerNumber.mayStep), which no lock ever stores: so one comparison with the word of a lock says "mine, and not in a
// body" or "look".

@usableFromInline
enum LockOwner {
  @inlinable static var none: UInt { 0 }

  /// The number under which a running job has taken a lock.
  @inlinable @inline(__always)
  static func taking(_ job: JobRef) -> UInt {
    let owner = job.pointee.owner.load(ordering: .relaxed)
    return owner & OwnerNumber.mayStep == 0 ? owner : job.takesWhileStepping()
  }

  /// The number under which the calling code has taken a lock.
  @inline(__always)
  static func taking() -> UInt {
    if let job = Carrier.current?.pointee.job { return taking(job) }
    return OwnerNumber.ofThread & ~OwnerNumber.mayStep
  }

  /// Whether `owner` is the caller.
  @inlinable @inline(__always)
  static func isCaller(_ owner: UInt) -> Bool {
    guard let job = Carrier.current?.pointee.job else { return isThread(owner) }
    return job.pointee.owner.load(ordering: .relaxed) & ~OwnerNumber.mayStep == owner
  }

  /// Whether `owner` is the caller, which unlocks.
  @inlinable @inline(__always)
  static func isUnlocking(_ owner: UInt) -> Bool {
    guard let job = Carrier.current?.pointee.job else { return isThread(owner) }
    return job.pointee.owner.load(ordering: .relaxed) == owner || job.unlocksWhileStepping(owner)
  }

  @usableFromInline @inline(never)
  static func isThread(_ owner: UInt) -> Bool { owner != none && OwnerNumber.ofThread & ~OwnerNumber.mayStep == owner }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The job's number, after a lock was taken; counts the lock if the caller runs in a body.
  @usableFromInline @inline(never)
  func takesWhileStepping() -> UInt {
    if !isOnOwnStack { GeneratorRecord.noteLocked(self) }
    return ownerNumber
  }

  /// Whether `owner` is the job, which unlocks; the lock is counted no more if the caller runs in a body.
  @usableFromInline @inline(never)
  func unlocksWhileStepping(_ owner: UInt) -> Bool {
    guard ownerNumber == owner else { return false }
    if !isOnOwnStack { GeneratorRecord.noteUnlocked(self) }
    return true
  }
}
