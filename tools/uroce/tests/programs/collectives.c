/* Collective operations of MPI, every element compared. Prints a line when all ranks have found all of them right. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* Elements: less than a packet, some packets, and what is announced first and fetched with an RDMA operation. */
static const int COUNTS[] = {1, 1000, 1 << 17};

static int rank, ranks;

/* Element `i` of what `from` has for `to`. */
static long element(int from, int to, int i)
{
    return (from * ranks + to) * 1000003L + i;
}

static long wrong_sums(int count)
{
    long wrong = 0, *mine = malloc(count * sizeof *mine), *sums = calloc(count, sizeof *sums);
    for (int i = 0; i < count; i++)
        mine[i] = element(rank, 0, i);
    MPI_Allreduce(mine, sums, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        long sum = 0;
        for (int other = 0; other < ranks; other++)
            sum += element(other, 0, i);
        wrong += sums[i] != sum;
    }
    free(mine);
    free(sums);
    return wrong;
}

static long wrong_exchanges(int count)
{
    long wrong = 0, *sent = malloc(ranks * count * sizeof *sent), *got = calloc(ranks * count, sizeof *got);
    for (int other = 0; other < ranks; other++)
        for (int i = 0; i < count; i++)
            sent[other * count + i] = element(rank, other, i);
    MPI_Alltoall(sent, count, MPI_LONG, got, count, MPI_LONG, MPI_COMM_WORLD);
    for (int other = 0; other < ranks; other++)
        for (int i = 0; i < count; i++)
            wrong += got[other * count + i] != element(other, rank, i);
    free(sent);
    free(got);
    return wrong;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long wrong = 0, all;
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++)
        wrong += wrong_sums(COUNTS[i]) + wrong_exchanges(COUNTS[i]);
    MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    if (wrong)
        fprintf(stderr, "rank %d: %ld elements are wrong\n", rank, wrong);
    if (rank == 0 && !all)
        printf("%d ranks checked\n", ranks);
    return wrong != 0;
}
