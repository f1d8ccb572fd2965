import Coroutine

extension NetError {
  /// Creates the error of a system call.
  package init(code: Int32, _ operation: String, _ address: SocketAddress?) {
    self.init(.system, code: code, operation, address)
  }

  /// Creates the error of a descriptor.
  init(of failure: WatchedDescriptor.Failure, _ operation: String, _ address: SocketAddress?) {
    switch failure {
    case .closed: self.init(.closed, operation, address)
    case .system(let code): self.init(code: code, operation, address)
    }
  }

  /// Runs `body`, and adds the operation and the address to errors of descriptors.
  ///
  /// Other errors, as cancellations, are not changed.
  static func translating<R>(
    _ operation: @autoclosure () -> String,
    _ address: @autoclosure () -> SocketAddress?,
    _ body: () throws -> R
  ) throws -> R {
    do {
      return try body()
    } catch let failure as WatchedDescriptor.Failure {
      throw NetError(of: failure, operation(), address())
    } catch let refusal as DescriptorRefusal {
      throw NetError(code: refusal.code, operation(), address())
    }
  }
}
