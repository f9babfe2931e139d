/* Looks for the device's node and for its attributes in sysfs, as programs do, by every function that leads there. A line for
   each: "works NAME". Anything else ends the program. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define WORKS(name, condition) \
    do { \
        CHECK(condition); \
        puts("works " #name); \
    } while (0)

/* What programs reach that were compiled for older C libraries, or with _FORTIFY_SOURCE. */
extern int ibv_read_sysfs_file(const char *, const char *, char *, size_t);
extern int __open_2(const char *, int), __open64_2(const char *, int);
extern int __openat_2(int, const char *, int), __openat64_2(int, const char *, int);
extern int __xstat(int, const char *, struct stat *), __xstat64(int, const char *, struct stat64 *);
extern int __lxstat(int, const char *, struct stat *), __lxstat64(int, const char *, struct stat64 *);
extern int __fxstatat(int, int, const char *, struct stat *, int), __fxstatat64(int, int, const char *, struct stat64 *, int);
extern ssize_t __readlink_chk(const char *, char *, size_t, size_t), __readlinkat_chk(int, const char *, char *, size_t, size_t);
extern char *__realpath_chk(const char *, char *, size_t);
/* The version of `struct stat` on x86-64. */
#define STAT_VERSION 1

static char node[PATH_MAX], folder[PATH_MAX], guid[PATH_MAX];

/* Whether the descriptor reads a GUID; it is closed. */
static int reads_guid(int fd)
{
    char text[64] = {0};
    int is_guid = fd >= 0 && read(fd, text, sizeof text) == 20 && text[4] == ':' && text[19] == '\n';
    return close(fd) == 0 && is_guid;
}

static int reads_guid_by(FILE *file)
{
    char text[64];
    int is_guid = file && fgets(text, sizeof text, file) && strlen(text) == 20;
    return is_guid && fclose(file) == 0;
}

static void opening(void)
{
    WORKS(open, reads_guid(open(guid, O_RDONLY)));
    WORKS(open64, reads_guid(open64(guid, O_RDONLY)));
    WORKS(__open_2, reads_guid(__open_2(guid, O_RDONLY)));
    WORKS(__open64_2, reads_guid(__open64_2(guid, O_RDONLY)));
    WORKS(openat, reads_guid(openat(AT_FDCWD, guid, O_RDONLY)));
    WORKS(openat64, reads_guid(openat64(AT_FDCWD, guid, O_RDONLY)));
    WORKS(__openat_2, reads_guid(__openat_2(AT_FDCWD, guid, O_RDONLY)));
    WORKS(__openat64_2, reads_guid(__openat64_2(AT_FDCWD, guid, O_RDONLY)));
    WORKS(fopen, reads_guid_by(fopen(guid, "r")));
    WORKS(fopen64, reads_guid_by(fopen64(guid, "r")));
    int fd = open(node, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && close(fd) == 0);
}

/* The node is a character device that may be read and written; the attribute is a file. */
static void asking(void)
{
    struct stat plain;
    struct stat64 large;
    struct statx extended;
    WORKS(stat, stat(node, &plain) == 0 && S_ISCHR(plain.st_mode));
    WORKS(stat64, stat64(node, &large) == 0 && S_ISCHR(large.st_mode));
    WORKS(lstat, lstat(guid, &plain) == 0 && S_ISREG(plain.st_mode));
    WORKS(lstat64, lstat64(guid, &large) == 0 && S_ISREG(large.st_mode));
    WORKS(fstatat, fstatat(AT_FDCWD, node, &plain, 0) == 0 && S_ISCHR(plain.st_mode));
    WORKS(fstatat64, fstatat64(AT_FDCWD, node, &large, 0) == 0 && S_ISCHR(large.st_mode));
    WORKS(__xstat, __xstat(STAT_VERSION, node, &plain) == 0 && S_ISCHR(plain.st_mode));
    WORKS(__xstat64, __xstat64(STAT_VERSION, node, &large) == 0 && S_ISCHR(large.st_mode));
    WORKS(__lxstat, __lxstat(STAT_VERSION, guid, &plain) == 0 && S_ISREG(plain.st_mode));
    WORKS(__lxstat64, __lxstat64(STAT_VERSION, guid, &large) == 0 && S_ISREG(large.st_mode));
    WORKS(__fxstatat, __fxstatat(STAT_VERSION, AT_FDCWD, node, &plain, 0) == 0 && S_ISCHR(plain.st_mode));
    WORKS(__fxstatat64, __fxstatat64(STAT_VERSION, AT_FDCWD, node, &large, 0) == 0 && S_ISCHR(large.st_mode));
    WORKS(statx, statx(AT_FDCWD, node, 0, STATX_MODE, &extended) == 0 && S_ISCHR(extended.stx_mode));
    WORKS(access, access(node, R_OK | W_OK) == 0);
    WORKS(eaccess, eaccess(node, R_OK | W_OK) == 0);
    WORKS(faccessat, faccessat(AT_FDCWD, node, R_OK | W_OK, 0) == 0);
    char bytes[256];
    WORKS(getxattr, getxattr(guid, "user.none", bytes, sizeof bytes) < 0 && errno != ENOENT);
    WORKS(lgetxattr, lgetxattr(guid, "user.none", bytes, sizeof bytes) < 0 && errno != ENOENT);
    WORKS(listxattr, listxattr(guid, bytes, sizeof bytes) >= 0);
    WORKS(llistxattr, llistxattr(guid, bytes, sizeof bytes) >= 0);
}

static int is_device(const struct dirent *entry)
{
    return strcmp(entry->d_name, strrchr(folder, '/') + 1) == 0;
}

static int is_device64(const struct dirent64 *entry)
{
    return strcmp(entry->d_name, strrchr(folder, '/') + 1) == 0;
}

static void walking(void)
{
    DIR *all = opendir("/sys/class/infiniband/");
    CHECK(all);
    struct dirent *entry;
    while ((entry = readdir(all)) && !is_device(entry))
        ;
    WORKS(opendir, entry && closedir(all) == 0);
    struct dirent **found;
    WORKS(scandir, scandir("/sys/class/infiniband", &found, is_device, alphasort) == 1);
    free(found[0]), free(found);
    struct dirent64 **found64;
    WORKS(scandir64, scandir64("/sys/class/infiniband", &found64, is_device64, alphasort64) == 1);
    free(found64[0]), free(found64);
    char text[PATH_MAX];
    WORKS(readlink, readlink(node, text, sizeof text) == 9 && memcmp(text, "/dev/null", 9) == 0);
    WORKS(readlinkat, readlinkat(AT_FDCWD, node, text, sizeof text) == 9);
    WORKS(__readlink_chk, __readlink_chk(node, text, sizeof text, sizeof text) == 9);
    WORKS(__readlinkat_chk, __readlinkat_chk(AT_FDCWD, node, text, sizeof text, sizeof text) == 9);
    /* Where the tree is does not show. */
    snprintf(text, sizeof text, "%.1000s/../..", folder);
    char resolved[PATH_MAX], *allocated;
    WORKS(realpath, realpath(text, resolved) == resolved && strcmp(resolved, "/sys/class") == 0);
    WORKS(__realpath_chk, __realpath_chk(text, resolved, sizeof resolved) && strcmp(resolved, "/sys/class") == 0);
    WORKS(canonicalize_file_name, (allocated = canonicalize_file_name(folder)) && strcmp(allocated, folder) == 0);
    free(allocated);
    int before = open(".", O_RDONLY | O_DIRECTORY);
    struct stat file;
    WORKS(chdir, chdir(folder) == 0 && stat("ports/1/gids/0", &file) == 0 && fchdir(before) == 0);
    CHECK(close(before) == 0);
}

/* A counter's file has a number, however it is opened, and no device is open yet: 0. */
static void counting(void)
{
    char path[PATH_MAX], text[64] = {0};
    snprintf(path, sizeof path, "%.1000s/ports/1/hw_counters/sent_pkts", folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && read(fd, text, sizeof text) == 2 && strcmp(text, "0\n") == 0);
    CHECK(close(fd) == 0 && (fd = open(path, O_RDONLY)) >= 0 && fcntl(fd, F_GETFD) == 0 && close(fd) == 0);
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(text, sizeof text, file) && strcmp(text, "0\n") == 0 && fclose(file) == 0);
}

/* A connection of the program to itself, over the loopback. */
static void connecting(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 2) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    int ends[4];
    for (int i = 0; i < 2; i++) {
        CHECK((ends[i] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
        CHECK(connect(ends[i], (struct sockaddr *)&address, len) == 0);
    }
    puts("works connect");
    WORKS(accept, (ends[2] = accept(listener, NULL, NULL)) >= 0);
    WORKS(accept4, (ends[3] = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0 && fcntl(ends[3], F_GETFD) == FD_CLOEXEC);
    for (int i = 0; i < 4; i++)
        CHECK(close(ends[i]) == 0);
    CHECK(close(listener) == 0 && connect(-1, (struct sockaddr *)&address, len) == -1 && errno == EBADF);
}

/* All other paths are the system's. */
static void others(void)
{
    struct stat file;
    CHECK(stat("/sys/class/infinibandx", &file) == -1 && errno == ENOENT);
    CHECK(stat("/sys/class/net/lo", &file) == 0 && stat("/dev/null", &file) == 0);
    CHECK(stat("", &file) == -1 && errno == ENOENT);
    char longest[3 * PATH_MAX];
    memset(longest, 'x', sizeof longest);
    memcpy(longest, "/dev/infiniband/", 16);
    longest[sizeof longest - 1] = 0;
    CHECK(open(longest, O_RDONLY) == -1 && errno == ENAMETOOLONG);
    CHECK(realpath("/usr/..", longest) && strcmp(longest, "/") == 0);
    char text[64] = {0};
    /* The mode is passed on; such a file has no name. */
    int made = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(made >= 0 && fstat(made, &file) == 0 && (file.st_mode & 07777) == 0600);
    CHECK(close(made) == 0 && ibv_read_sysfs_file(folder, "node_type", text, sizeof text) == 5 && strcmp(text, "1: CA") == 0);
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices && devices[0]);
    snprintf(node, sizeof node, "/dev/infiniband/%s", devices[0]->dev_name);
    snprintf(folder, sizeof folder, "%s", devices[0]->ibdev_path);
    snprintf(guid, sizeof guid, "%.1000s/node_guid", folder);
    opening();
    asking();
    counting();
    connecting();
    walking();
    others();
    ibv_free_device_list(devices);
    return 0;
}
