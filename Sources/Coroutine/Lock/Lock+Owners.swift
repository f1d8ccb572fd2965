import Synchronization

// The owners of locks, for the search for deadlocks.
//
// Only an owner writes its number, and a lock that is being handed over has none. So a number that is read names a
// coroutine that has locked and not unlocked since, if that coroutine has waited for something else meanwhile.

extension FairMutex: OwnedSource {
  func owners(awaitedBy job: JobRef) -> [UInt]? { Self.known(owner.load(ordering: .relaxed)) }

  fileprivate static func known(_ owner: UInt) -> [UInt]? {
    owner == LockOwner.none ? nil : [owner]
  }
}

extension FairReadWriteLock: OwnedSource {
  /// The writer; the lock does not know its readers.
  func owners(awaitedBy job: JobRef) -> [UInt]? { FairMutex.known(writer.load(ordering: .relaxed)) }
}
