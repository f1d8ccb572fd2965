extension AnyPromise {
  /// Suspends the Task until the promise is settled, or throws `CancellationError` once the Task is cancelled.
  ///
  /// In the second case the promise is cancelled too if the Task was its last consumer.
  final func awaitSettled() async throws {
    guard !completion.isSettled else { return ignore() }
    await PromiseWait(self).wait()
    guard completion.isSettled else {
      consumerWasCancelled()
      throw CancellationError()
    }
  }
}

/// A Task's wait for a promise.
private final class PromiseWait: TaskWait, @unchecked Sendable {
  // Sound because `promise` never changes, and guards itself.
  private let promise: AnyPromise

  init(_ promise: AnyPromise) {
    self.promise = promise
    super.init()
  }

  override func link() -> Bool { promise.link(self) }
  override func leave() -> Bool { promise.unlink(self) }
}
