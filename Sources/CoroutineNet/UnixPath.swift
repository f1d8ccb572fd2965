internal import CLinux
import Coroutine
import Glibc
import Synchronization

/// The file of a bound Unix socket, which outlives the socket unless it is removed.
///
/// It removes two kinds of files only:
/// - before the bind, a socket that no process has open, as a crash leaves it;
/// - after the close, the file that the bind created.
///
/// A regular file is never removed, nor is a socket that another process has bound to the path since.
final class UnixPath: Sendable {
  private let path: String
  private let address: SocketAddress
  /// The inode of the file after the bind; 0 before the bind and after the removal.
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

  /// Removes the file if it is a socket that no process has open.
  ///
  /// It connects a datagram socket to the path, which an owner of the path does not notice. The kernel refuses the
  /// connection if no process has the socket open, and reports EPROTOTYPE if a stream socket has the path.
  func removeIfStale() {
    guard socketInode() != nil else { return }
    let probe = clinux_socket(AF_UNIX, false)
    guard probe >= 0 else { return }
    defer { close(probe) }
    let code = address.withSystem { connect(probe, $0.assumingMemoryBound(to: sockaddr.self), $1) == 0 ? 0 : errno }
    if code == ECONNREFUSED { unlink(path) }
  }

  /// Stores the inode of the file that the bind has created.
  func remember() { inode.store(socketInode() ?? 0, ordering: .relaxed) }

  /// Removes the file, once, if it is still the file that the bind created.
  func remove() {
    let mine = inode.exchange(0, ordering: .relaxed)
    // In a forked child the file belongs to the parent.
    guard mine != 0, !WatchedDescriptor.isForkedChild, socketInode() == mine else { return }
    unlink(path)
  }
}
