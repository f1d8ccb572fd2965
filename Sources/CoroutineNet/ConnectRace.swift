import Coroutine

/// Connects to several addresses concurrently, and uses the first success ("happy eyeballs", RFC 8305, sections 4, 5).
enum ConnectRace {
  /// Orders addresses so that the families alternate, beginning with the first one's; within a family the order stays.
  static func alternatingFamilies(_ addresses: [SocketAddress]) -> [SocketAddress] {
    guard let first = addresses.first else { return [] }
    let preferred = addresses.filter { $0.family == first.family }
    let others = addresses.filter { $0.family != first.family }
    var ordered: [SocketAddress] = []
    for index in 0..<max(preferred.count, others.count) {
      if index < preferred.count { ordered.append(preferred[index]) }
      if index < others.count { ordered.append(others[index]) }
    }
    return ordered
  }

  /// Returns the first success of `connect`, which is called for each address in its own coroutine.
  ///
  /// An attempt begins `apart` after the previous one, or as soon as an attempt has failed. After a success, the other
  /// attempts are cancelled, and have ended when this function returns. Their results are released. If all attempts
  /// fail, it throws the failure of the first address.
  ///
  /// Suspends. If the coroutine is cancelled, all attempts are cancelled, and it throws when they have ended.
  static func first<Output: Sendable>(
    of addresses: [SocketAddress],
    apart: Duration,
    _ connect: @escaping @Sendable (SocketAddress) throws -> Output
  ) throws -> Output {
    let outcomes = Channel<(index: Int, result: Result<Output, any Error>)>(.bounded(max(1, addresses.count)))
    return try co_scope { scope in
      var failures: [(index: Int, error: any Error)] = []
      var begun = 0
      var isDue = true
      while failures.count < addresses.count {
        if begun < addresses.count, isDue || begun == failures.count {
          let index = begun
          scope.launch(name: "connect") {
            let result = Result { try connect(addresses[index]) }
            // A cancelled send means that another attempt has succeeded: the result is released.
            try? outcomes.send((index, result))
          }
          begun += 1
          isDue = false
        }
        let outcome: (index: Int, result: Result<Output, any Error>)? = try co_select {
          outcomes.onReceive { $0 }
          if begun < addresses.count { .onTimeout(apart) { nil } }
        }
        isDue = true
        guard let outcome else { continue }
        switch outcome.result {
        case .success(let output):
          scope.cancel()
          return output
        case .failure(let error): failures.append((outcome.index, error))
        }
      }
      throw failures.min { $0.index < $1.index }?.error ?? NetError(.badAddress("there is no address to connect to"))
    }
  }
}
