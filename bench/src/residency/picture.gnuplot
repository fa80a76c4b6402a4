# Throughput by message size and tail latency by load:
# gnuplot -e "data='FOLDER'; out='FOLDER'; machine='WORDS'; kib=256" picture.gnuplot
# Colours that are told apart without red and green (Okabe and Ito); each line has a mark and dashes of its own as well.
set style line 1 lc rgb '#0072B2' lw 2 pt 7 ps 0.8 dt 1
set style line 2 lc rgb '#D55E00' lw 2 pt 5 ps 0.8 dt 2
set style line 3 lc rgb '#009E73' lw 2 pt 9 ps 0.9 dt 4
set style line 4 lc rgb '#CC79A7' lw 2 pt 13 ps 1.0 dt 3
set style line 5 lc rgb '#E69F00' lw 2 pt 11 ps 0.9 dt 5
set style line 8 lc rgb '#000000' lw 1.2 pt 2 ps 0.5 dt 1
set style line 9 lc rgb '#000000' lw 1.2 pt 1 ps 0.5 dt (12,4)
keys = 'jet own following shared capped'
array title[5] = ["(a) Jet's pool, 12 MiB", '(b) buffers of each connection', "(c) Jet's pool, following the load", \
    '(d) shared pool of 32 MiB, last in first out', '(e) as (b), 32 READs at once']

do for [format in 'svg png'] {
    if (format eq 'svg') { set terminal svg size 1500,620 font 'sans,12' background 'white' }
    if (format eq 'png') { set terminal pngcairo size 1500,620 font 'sans,10' }
    set output out.'/residency.'.format
    set multiplot layout 1,3 margins 0.045,0.985,0.30,0.93 spacing 0.05
    set grid ytics lt 1 lw 0.6 lc rgb '#bbbbbb'
    set key off
    set label 1 machine at screen 0.985,0.075 right noenhanced font ',9'
    set label 2 'Marks: medians of turns; bars: least and most.' at screen 0.045,0.075 left font ',9'
    do for [with in '0 1'] {
        set title (with eq '0' ? 'Throughput' : 'Throughput beside the antagonist')
        set xlabel 'message, KiB'
        set ylabel 'GB/s'
        unset logscale
        set logscale x 2
        set xtics (4, 16, 64, 256, 1024)
        set xrange [3:1400]
        set yrange [0:*]
        # Side by side, so that bars do not hide each other.
        if (with eq '1') {
            set key at screen 0.5,0.19 center top maxrows 3 Left reverse samplen 4 spacing 1.1 width 2
        }
        plot for [i=1:5] data.'/'.word(keys, i).'-'.with using ($1*1.05**(i-3)):2:3:4 with yerrorlines ls i title title[i], \
             data.'/bare-pool-'.with using 1:2 with linespoints ls 8 title "bare loop, ring of 12 MiB", \
             data.'/bare-connections-'.with using 1:2 with linespoints ls 9 title "bare loop, ring of all connections' buffers"
        set key off
        unset label
    }
    set title sprintf('P99.9 from the intended arrival, %d KiB, beside the antagonist', kib)
    set xlabel "offered, % of the slowest's throughput"
    set ylabel 'ms'
    unset logscale
    set logscale y
    set xtics (50, 70, 90)
    set xrange [40:100]
    set yrange [*:*]
    plot for [i=1:5] data.'/'.word(keys, i).'-tail' using ($1+(i-3)*0.8):2:3:4 with yerrorlines ls i notitle
    unset multiplot
}
