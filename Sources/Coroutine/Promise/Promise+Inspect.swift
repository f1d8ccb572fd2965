// The description of a promise, for dumps.

extension AnyPromise: OwnedSource {
  /// The coroutine of the library's that settles it, of a retry for example, or the job that it copies.
  ///
  /// Other code may settle it too. That counts as a cancellation.
  func owners(awaitedBy job: JobRef) -> [UInt]? { settlingOwner.map { [$0] } }

  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), created at \(launchSite.description)" }
  func verb(of queue: UInt?) -> String { "await" }
}
