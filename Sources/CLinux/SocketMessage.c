// Datagrams with the address on this machine that they were sent to, or are sent from (IP_PKTINFO, IPV6_PKTINFO).
#include "Check.h"
#include "CLinux.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

// Room for one packet information of the larger kind, aligned as a cmsghdr.
union control {
  struct cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(struct in6_pktinfo))];
};

static uint32_t target_of(struct msghdr *message, void *target) {
  for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_PKTINFO) {
      struct in_pktinfo info;
      memcpy(&info, CMSG_DATA(part), sizeof info);
      struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = info.ipi_addr};
      memcpy(target, &address, sizeof address);
      return sizeof address;
    }
    if (part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_PKTINFO) {
      struct in6_pktinfo info;
      memcpy(&info, CMSG_DATA(part), sizeof info);
      struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = info.ipi6_addr};
      // Only an address of one link needs its interface.
      if (IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr) || IN6_IS_ADDR_MC_LINKLOCAL(&info.ipi6_addr))
        address.sin6_scope_id = info.ipi6_ifindex;
      memcpy(target, &address, sizeof address);
      return sizeof address;
    }
  }
  return 0;
}

int64_t clinux_receive_message(int socket, void *bytes, size_t count, void *address, uint32_t *length, void *target,
                               uint32_t *target_length) {
  clinux_check();
  struct iovec piece = {.iov_base = bytes, .iov_len = count};
  union control control;
  struct msghdr message = {
      .msg_name = address, .msg_namelen = *length, .msg_iov = &piece, .msg_iovlen = 1,
      .msg_control = &control, .msg_controllen = sizeof control,
  };
  ssize_t result = recvmsg(socket, &message, MSG_TRUNC);
  if (result < 0) return -errno;
  *length = message.msg_namelen;
  *target_length = target_of(&message, target);
  return result;
}

int64_t clinux_send_from(int socket, const void *bytes, size_t count, const void *address, uint32_t length,
                         const void *source, uint32_t source_length) {
  clinux_check();
  struct iovec piece = {.iov_base = (void *)bytes, .iov_len = count};
  union control control;
  memset(&control, 0, sizeof control);
  struct msghdr message = {
      .msg_name = (void *)address, .msg_namelen = length, .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
  };
  struct sockaddr_storage from = {0};
  if (source_length > sizeof from) return -EINVAL;
  memcpy(&from, source, source_length);
  if (from.ss_family == AF_INET) {
    struct in_pktinfo info = {.ipi_spec_dst = ((struct sockaddr_in *)&from)->sin_addr};
    control.header = (struct cmsghdr){CMSG_LEN(sizeof info), IPPROTO_IP, IP_PKTINFO};
    memcpy(CMSG_DATA(&control.header), &info, sizeof info);
    message.msg_controllen = CMSG_SPACE(sizeof info);
  } else if (from.ss_family == AF_INET6) {
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&from;
    struct in6_pktinfo info = {.ipi6_addr = six->sin6_addr, .ipi6_ifindex = six->sin6_scope_id};
    control.header = (struct cmsghdr){CMSG_LEN(sizeof info), IPPROTO_IPV6, IPV6_PKTINFO};
    memcpy(CMSG_DATA(&control.header), &info, sizeof info);
    message.msg_controllen = CMSG_SPACE(sizeof info);
  } else {
    return -EAFNOSUPPORT;
  }
  ssize_t result = sendmsg(socket, &message, MSG_NOSIGNAL);
  return result < 0 ? -errno : result;
}
