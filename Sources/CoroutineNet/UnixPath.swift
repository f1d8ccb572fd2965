internal import CLinux
import Coroutine
import Glibc
import Synchronization

/// The file of a bound Unix socket, which outlives the socket unless it is removed.
///
/// Only a file that is certainly ours goes: before the bind, a socket at which nobody listens, as a crash leaves it;
/// after the close, the very file that the bind made. A regular file, and a socket that somebody else has bound
/// meanwhile, stay.
final class UnixPath: Sendable {
  private let path: String
  private let address: SocketAddress
  /// The file's number after the bind; 0 before, and after the removal.
  private let inode = Atomic<UInt64>(0)

  init?(_ address: SocketAddress, unlinks: Bool) {
    guard unlinks, case .unix(let bytes) = address.storage, let first = bytes.first, first != 0 else { return nil }
    path = String(decoding: bytes, as: UTF8.self)
    self.address = address
  }

  private func socketInode() -> UInt64? {
    var status = stat()
    guard lstat(path, &status) == 0, status.st_mode & S_IFMT == S_IFSOCK else { return nil }
    return UInt64(status.st_ino)
  }

  /// Removes a socket that no process has any more.
  ///
  /// Asked by connecting a datagram socket, which the owner does not notice: the kernel refuses it if nobody has the
  /// path, and calls it the wrong kind (EPROTOTYPE) if a stream socket has it.
  func removeIfStale() {
    guard socketInode() != nil else { return }
    let probe = clinux_socket(AF_UNIX, false)
    guard probe >= 0 else { return }
    defer { close(probe) }
    let code = address.withSystem { connect(probe, $0.assumingMemoryBound(to: sockaddr.self), $1) == 0 ? 0 : errno }
    if code == ECONNREFUSED { unlink(path) }
  }

  func remember() { inode.store(socketInode() ?? 0, ordering: .relaxed) }

  /// Removes the file, once, if it is still the one that was bound.
  func remove() {
    let mine = inode.exchange(0, ordering: .relaxed)
    // The file is the parent's.
    guard mine != 0, !WatchedDescriptor.isForkedChild, socketInode() == mine else { return }
    unlink(path)
  }
}
